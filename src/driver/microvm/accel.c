#include "driver/microvm/accel.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/error.h"
#include "disk/program.h"
#include "driver/microvm/blank_disk.h"
#include "driver/microvm/boot_vm.h"
#include "driver/microvm/digest.h"
#include "os/file_lock.h"
#include "driver/microvm/tsc.h"
#include "os/cleanup.h"

#define VERDICT_GROUP "verdict"
#define TRIAL_MEMORY_MB 192
#define TRIAL_DISK_MB 16
#define MKFS_TIMEOUT_MS 10000
#define KVM_MAJOR 10 /* Documentation/admin-guide/devices.txt */
#define KVM_MINOR 232

void sp_vm_host_unref(struct sp_vm_host *host)
{
    if (!host || !g_atomic_ref_count_dec(&host->refs))
        return;
    g_free(host->detail);
    g_free(host->qemu_version);
    g_free(host->host_cpu);
    g_free(host->kvm_node);
    g_free(host);
}

/* What a guest with "-cpu host" can see of the CPU: family, model, stepping, flags. */
static char *host_cpu(void)
{
    g_autofree char *text = NULL;
    gsize len;
    if (!g_file_get_contents("/proc/cpuinfo", &text, &len, NULL))
        return g_strdup("unknown");
    struct sp_digest *digest = sp_digest_new();
    g_auto(GStrv) lines = g_strsplit(text, "\n", 64);
    for (unsigned i = 0; lines[i] && lines[i][0]; i++) {
        if (g_str_has_prefix(lines[i], "vendor_id") || g_str_has_prefix(lines[i], "cpu family") ||
            g_str_has_prefix(lines[i], "model") || g_str_has_prefix(lines[i], "stepping") ||
            g_str_has_prefix(lines[i], "flags"))
            sp_digest_add(digest, lines[i], strlen(lines[i]));
    }
    char hex[SP_HASH_HEX];
    sp_digest_end(digest, hex);
    return g_strndup(hex, 16);
}

/* --- the verdict's file --- */

/* Everything the verdict depends on, as one string. */
static char *circumstances(const struct sp_microvm *vm, const struct sp_guest *guest)
{
    g_autofree char *boot_id = NULL;
    struct stat st;
    if (!g_file_get_contents("/proc/sys/kernel/random/boot_id", &boot_id, NULL, NULL) ||
        stat(vm->qemu_path, &st) < 0)
        return NULL;
    return g_strdup_printf("%d %s %ju %jd %jd.%09ld %s %s", SP_BOOT_FORMAT, g_strchomp(boot_id),
                           (uintmax_t)st.st_ino, (intmax_t)st.st_size, (intmax_t)st.st_mtim.tv_sec,
                           st.st_mtim.tv_nsec, guest->kernel_sha256, guest->initramfs_sha256);
}

static struct sp_vm_host *read_verdict(const char *path, const char *wanted)
{
    g_autoptr(GKeyFile) file = g_key_file_new();
    if (!g_key_file_load_from_file(file, path, G_KEY_FILE_NONE, NULL))
        return NULL;
    g_autofree char *found = g_key_file_get_string(file, VERDICT_GROUP, "for", NULL);
    g_autofree char *accel = g_key_file_get_string(file, VERDICT_GROUP, "accel", NULL);
    g_autofree char *detail = g_key_file_get_string(file, VERDICT_GROUP, "detail", NULL);
    g_autofree char *version = g_key_file_get_string(file, VERDICT_GROUP, "qemu", NULL);
    int tsc_khz = g_key_file_get_integer(file, VERDICT_GROUP, "tsc_khz", NULL);
    if (!found || strcmp(found, wanted) != 0 || !accel || !detail || !version || tsc_khz <= 0)
        return NULL;
    struct sp_vm_host *host = g_new0(struct sp_vm_host, 1);
    g_atomic_ref_count_init(&host->refs);
    host->accel = strcmp(accel, "kvm") == 0 ? SP_ACCEL_KVM : SP_ACCEL_TCG;
    host->detail = g_steal_pointer(&detail);
    host->qemu_version = g_steal_pointer(&version);
    host->tsc_khz = (unsigned)tsc_khz;
    return host;
}

static void write_verdict(const char *path, const char *circumstances_text,
                          const struct sp_vm_host *host)
{
    g_autoptr(GKeyFile) file = g_key_file_new();
    g_key_file_set_string(file, VERDICT_GROUP, "for", circumstances_text);
    g_key_file_set_string(file, VERDICT_GROUP, "accel", sp_accel_name(host->accel));
    g_key_file_set_string(file, VERDICT_GROUP, "detail", host->detail);
    g_key_file_set_string(file, VERDICT_GROUP, "qemu", host->qemu_version);
    g_key_file_set_integer(file, VERDICT_GROUP, "tsc_khz", (int)host->tsc_khz);
    /* Only a saving of time: when it cannot be written the trial is made again. */
    g_key_file_save_to_file(file, path, NULL);
}

/* --- the trial --- */

/* An erofs image of an empty directory. */
static bool make_root(const char *dir, const char *image, GError **error)
{
    g_autofree char *empty = g_build_filename(dir, "empty", NULL);
    if (g_mkdir_with_parents(empty, 0755) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "make %s", empty);
        return false;
    }
    unlink(image);
    const char *argv[] = {"mkfs.erofs", "--quiet", image, empty, NULL};
    struct sp_program program = {.argv = argv, .timeout_ms = MKFS_TIMEOUT_MS};
    return sp_program_run(&program, error);
}

static int open_file(const char *path, int flags, GError **error)
{
    int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", path);
    return fd;
}

/* Boots to the agent's first answer and saves. */
static bool trial(struct sp_microvm *vm, const struct sp_guest *guest, const char *dir,
                  enum sp_accel accel, const char *kvm_node, unsigned tsc_khz, char **ret_version,
                  GError **error)
{
    g_autofree char *root = g_build_filename(dir, "root.erofs", NULL);
    g_autofree char *state = g_build_filename(dir, "state", NULL);
    g_autofree char *rw = sp_blank_disk(dir, TRIAL_DISK_MB, error);
    if (!rw || !make_root(dir, root, error))
        return false;
    SP_CLEANUP(sp_close_fdp) int root_fd = open_file(root, O_RDONLY, error);
    SP_CLEANUP(sp_close_fdp) int rw_fd = root_fd < 0 ? -1 : open_file(rw, O_RDWR, error);
    SP_CLEANUP(sp_close_fdp)
    int state_fd = rw_fd < 0 ? -1 : open_file(state, O_WRONLY | O_CREAT | O_TRUNC, error);
    if (state_fd < 0)
        return false;
    struct sp_boot_vm_spec spec = {
        .name = "vm-trial",
        .dir = dir,
        .accel = accel,
        .kvm_node = kvm_node,
        .tsc_khz = tsc_khz,
        .guest = guest,
        .memory_mb = TRIAL_MEMORY_MB,
        .vcpus = 1,
        .root_fd = root_fd,
        .rw_fd = rw_fd,
        .boot_timeout_ms = accel == SP_ACCEL_KVM ? SP_TRIAL_KVM_MS : SP_TRIAL_TCG_MS,
    };
    struct sp_boot_vm boot;
    if (!sp_boot_vm_start(vm, &spec, &boot, error))
        return false;
    bool ok = sp_boot_vm_save(&boot, state_fd, error);
    if (ok)
        *ret_version = g_strdup(sp_qmp_version(boot.qmp));
    sp_boot_vm_clear(&boot);
    return ok;
}

/* A node of our own, since the host's may be closed to the VMM's uid; the directory around it is
 * closed to everybody. NULL with the reason. */
static char *make_kvm_node(const char *dir, GError **error)
{
    int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "/dev/kvm: %s", g_strerror(errno));
        return NULL;
    }
    close(fd);
    g_autofree char *path = g_build_filename(dir, "kvm", NULL);
    unlink(path);
    if (mknod(path, S_IFCHR | 0666, makedev(KVM_MAJOR, KVM_MINOR)) < 0 || chmod(path, 0666) < 0) {
        sp_error_set_errno(error, SP_ERROR_UNSUPPORTED, errno, "make %s", path);
        return NULL;
    }
    return g_steal_pointer(&path);
}

static struct sp_vm_host *try_all(struct sp_microvm *vm, const struct sp_guest *guest,
                                  const char *dir, GError **error)
{
    struct sp_vm_host *host = g_new0(struct sp_vm_host, 1);
    g_atomic_ref_count_init(&host->refs);
    g_autoptr(GError) without_kvm = NULL;
    host->tsc_khz = sp_tsc_measure_khz();
    g_autofree char *kvm_node = make_kvm_node(dir, &without_kvm);
    if (kvm_node && trial(vm, guest, dir, SP_ACCEL_KVM, kvm_node, host->tsc_khz,
                          &host->qemu_version, &without_kvm)) {
        host->accel = SP_ACCEL_KVM;
        host->detail = g_strdup("kvm");
        return host;
    }
    if (host->tsc_khz == 0)
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "no steady time-stamp counter");
    else if (trial(vm, guest, dir, SP_ACCEL_TCG, NULL, host->tsc_khz, &host->qemu_version, error)) {
        host->accel = SP_ACCEL_TCG;
        host->detail = kvm_node ? g_strdup_printf("tcg (guests do not run in /dev/kvm: %.200s)",
                                                  without_kvm->message)
                                : g_strdup_printf("tcg (%s)", without_kvm->message);
        return host;
    }
    sp_vm_host_unref(host);
    return NULL;
}

struct sp_vm_host *sp_accel_find(struct sp_microvm *vm, const struct sp_guest *guest,
                                 GError **error)
{
    if (!vm->qemu_path) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "qemu-system-x86_64 is not installed");
        return NULL;
    }
    g_autofree char *dir = g_build_filename(vm->env->state_dir, "microvm", NULL);
    g_autofree char *verdict = g_build_filename(dir, "verdict.ini", NULL);
    g_autofree char *lock_path = g_build_filename(dir, "lock", NULL);
    if (g_mkdir_with_parents(dir, 0700) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "make %s", dir);
        return NULL;
    }
    SP_CLEANUP(sp_close_fdp)
    int lock = sp_file_lock(lock_path, SP_TRIAL_KVM_MS + SP_TRIAL_TCG_MS + 5000, error);
    g_autofree char *wanted = lock < 0 ? NULL : circumstances(vm, guest);
    if (lock < 0)
        return NULL;
    struct sp_vm_host *host = wanted ? read_verdict(verdict, wanted) : NULL;
    if (!host) {
        host = try_all(vm, guest, dir, error);
        if (host && wanted)
            write_verdict(verdict, wanted, host);
    }
    if (!host)
        return NULL;
    host->host_cpu = host->accel == SP_ACCEL_KVM ? host_cpu() : g_strdup("");
    host->kvm_node = host->accel == SP_ACCEL_KVM ? g_build_filename(dir, "kvm", NULL) : NULL;
    return host;
}
