#include "driver/microvm/boot_build.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "disk/clone.h"
#include "disk/tree.h"
#include "disk/volume.h"
#include "driver/microvm/blank_disk.h"
#include "driver/microvm/boot_vm.h"
#include "os/file_lock.h"
#include "driver/microvm/manifest.h"
#include "driver/microvm/memory.h"
#include "driver/microvm/vmm.h"
#include "driver/microvm/warm_up.h"
#include "os/cleanup.h"

#define BUILD_LOCK_MS 600000
#define BOOT_TIMEOUT_MS 60000

char *sp_boot_image_path(const char *template_dir, const char *key)
{
    return g_build_filename(template_dir, "vm", key, NULL);
}

bool sp_boot_image_exists(const char *path)
{
    g_autofree char *manifest = g_build_filename(path, "manifest.json", NULL);
    return access(manifest, F_OK) == 0;
}

bool sp_boot_image_remove(const char *path, GError **error)
{
    if (sp_tree_remove(path) == 0)
        return true;
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "remove %s", path);
    return false;
}

static void say(const struct sp_boot_build *build, const char *line)
{
    if (build->progress)
        build->progress(build->user, line);
}

static int open_in(const char *dir, const char *name, int flags, GError **error)
{
    g_autofree char *path = g_build_filename(dir, name, NULL);
    int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        sp_error_set_errno(error, errno == ENOSPC ? SP_ERROR_UNAVAILABLE : SP_ERROR_INTERNAL, errno,
                           "open %s", path);
    return fd;
}

static bool sync_fd(int fd, GError **error)
{
    if (fsync(fd) == 0)
        return true;
    sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "sync boot image");
    return false;
}

static bool sync_dir(const char *path, GError **error)
{
    SP_CLEANUP(sp_close_fdp) int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return sync_fd(fd, error);
}

static void set_file(struct sp_boot_file *file, const struct sp_memory_copied *copied)
{
    file->size_bytes = copied->size_bytes;
    file->data_bytes = copied->data_bytes;
    file->sha256 = g_strdup(copied->sha256);
}

/* Digest of a file that is in its place already. */
static bool describe(int fd, struct sp_boot_file *ret, GError **error)
{
    struct sp_memory_copied copied;
    if (!sync_fd(fd, error) || !sp_memory_copy(fd, -1, &copied, error))
        return false;
    set_file(ret, &copied);
    return true;
}

static bool save_memory(int memory_fd, const char *dir, struct sp_boot_file *ret, GError **error)
{
    struct sp_memory_copied copied;
    SP_CLEANUP(sp_close_fdp)
    int fd = open_in(dir, "memory", O_WRONLY | O_CREAT | O_EXCL, error);
    if (fd < 0 || !sp_memory_copy(memory_fd, fd, &copied, error) || !sync_fd(fd, error))
        return false;
    set_file(ret, &copied);
    return true;
}

static bool write_manifest(const char *dir, const struct sp_boot_build *build,
                           struct sp_boot_manifest *manifest, GError **error)
{
    char key[SP_BOOT_KEY_MAX];
    sp_boot_key(build->identity, key);
    manifest->format = SP_BOOT_FORMAT;
    manifest->key = g_strdup(key);
    manifest->identity = sp_boot_identity_text(build->identity);
    g_autofree char *text = sp_boot_manifest_text(manifest);
    g_autofree char *path = g_build_filename(dir, "manifest.json", NULL);
    /* Flushes before it renames (G_FILE_SET_CONTENTS_CONSISTENT | _DURABLE). */
    return g_file_set_contents_full(
        path, text, -1, G_FILE_SET_CONTENTS_CONSISTENT | G_FILE_SET_CONTENTS_DURABLE, 0600, error);
}

/* Boots, warms up, saves devices and RAM. The VM is gone when it returns. */
static bool record_vm(struct sp_microvm *vm, const struct sp_boot_build *build,
                      const struct sp_boot_vm_spec *spec, struct sp_boot_manifest *manifest,
                      GError **error)
{
    g_autofree char *config_path = g_build_filename(build->template_dir, "config.json", NULL);
    g_autofree char *config = NULL;
    gsize config_len;
    if (!g_file_get_contents(config_path, &config, &config_len, error))
        return false;
    SP_CLEANUP(sp_close_fdp)
    int state_fd = open_in(spec->dir, "state", O_WRONLY | O_CREAT | O_EXCL, error);
    if (state_fd < 0)
        return false;

    say(build, "booting the guest");
    struct sp_boot_vm boot;
    if (!sp_boot_vm_start(vm, spec, &boot, error))
        return false;
    say(build, "warming up");
    bool ok = sp_warm_up(boot.talk, config, config_len, error);
    if (ok) {
        say(build, "saving");
        ok = sp_boot_vm_save(&boot, state_fd, error) && sp_boot_vm_kill(&boot, error) &&
             save_memory(boot.memory_fd, spec->dir, &manifest->memory, error);
    }
    sp_boot_vm_clear(&boot);
    return ok;
}

/* Fills the directory. */
static bool make_image(struct sp_microvm *vm, const struct sp_boot_build *build, const char *dir,
                       struct sp_boot_manifest *manifest, GError **error)
{
    const struct sp_boot_identity *identity = build->identity;
    g_autofree char *blank =
        sp_blank_disk(sp_volume_dir(vm->env->volume), identity->disk_mb, error);
    g_autofree char *disk = g_build_filename(dir, "disk", NULL);
    if (!blank || !sp_file_clone(blank, disk, 0600, NULL, error))
        return false;
    SP_CLEANUP(sp_close_fdp) int disk_fd = open_in(dir, "disk", O_RDWR, error);
    SP_CLEANUP(sp_close_fdp)
    int root_fd = open_in(build->template_dir, "image.erofs", O_RDONLY, error);
    if (disk_fd < 0 || root_fd < 0)
        return false;

    char key[SP_BOOT_KEY_MAX];
    sp_boot_key(identity, key);
    g_autofree char *name = g_strdup_printf("vm-build-%.16s", key);
    struct sp_boot_vm_spec spec = {
        .name = name,
        .dir = dir,
        .accel = identity->accel,
        .kvm_node = build->host->kvm_node,
        .tsc_khz = build->host->tsc_khz,
        .guest = build->guest,
        .memory_mb = identity->memory_mb,
        .vcpus = identity->vcpus,
        .root_fd = root_fd,
        .rw_fd = disk_fd,
        .boot_timeout_ms = BOOT_TIMEOUT_MS,
    };
    if (!record_vm(vm, build, &spec, manifest, error))
        return false;
    SP_CLEANUP(sp_close_fdp) int state_fd = open_in(dir, "state", O_RDONLY, error);
    return state_fd >= 0 && describe(state_fd, &manifest->state, error) &&
           describe(disk_fd, &manifest->disk, error) && sp_vmm_remove_files(dir, error) &&
           write_manifest(dir, build, manifest, error);
}

static bool publish(const char *temporary, const char *path, GError **error)
{
    g_autofree char *parent = g_path_get_dirname(path);
    if (!sync_dir(temporary, error))
        return false;
    if (rename(temporary, path) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "rename to %s", path);
        return false;
    }
    return sync_dir(parent, error);
}

/* The part of an identity that tells images apart that are all of use: the sizes, which come last.
 */
static const char *sizes_of(const char *identity)
{
    const char *at = strstr(identity, "\nmemory_mb=");
    return at ? at : "";
}

/* Images of the same sizes that no VM will be made from any more: an agent, kernel or QEMU was
 * replaced. VMs that were made from them need nothing of them. What cannot be removed is left for
 * the next time. */
static void remove_superseded(const char *parent, const char *key, const char *identity)
{
    g_autoptr(GDir) dir = g_dir_open(parent, 0, NULL);
    for (const char *name; dir && (name = g_dir_read_name(dir));) {
        g_autofree char *path = g_build_filename(parent, name, NULL);
        g_autofree char *manifest_path = g_build_filename(path, "manifest.json", NULL);
        g_autofree char *text = NULL;
        gsize len;
        struct sp_boot_manifest other;
        if (name[0] == '.' || strcmp(name, key) == 0 ||
            !g_file_get_contents(manifest_path, &text, &len, NULL) ||
            !sp_boot_manifest_parse(text, len, &other, NULL))
            continue;
        if (strcmp(sizes_of(other.identity), sizes_of(identity)) == 0)
            sp_tree_remove(path);
        sp_boot_manifest_clear(&other);
    }
}

/* With the lock of this key held. */
static bool build_locked(struct sp_microvm *vm, const struct sp_boot_build *build,
                         const char *temporary, const char *path, GError **error)
{
    /* What an interrupted build has left. */
    if (!sp_boot_image_remove(temporary, error) || !sp_boot_image_remove(path, error))
        return false;
    if (mkdir(temporary, 0700) < 0) {
        sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "make %s", temporary);
        return false;
    }
    struct sp_boot_manifest manifest = {0};
    bool ok = make_image(vm, build, temporary, &manifest, error) && publish(temporary, path, error);
    if (ok) {
        g_autofree char *parent = g_path_get_dirname(path);
        remove_superseded(parent, manifest.key, manifest.identity);
    }
    sp_boot_manifest_clear(&manifest);
    if (!ok)
        sp_tree_remove(temporary);
    return ok;
}

bool sp_boot_image_build(struct sp_microvm *vm, const struct sp_boot_build *build, GError **error)
{
    char key[SP_BOOT_KEY_MAX];
    sp_boot_key(build->identity, key);
    g_autofree char *path = sp_boot_image_path(build->template_dir, key);
    g_autofree char *parent = g_path_get_dirname(path);
    g_autofree char *lock_path = g_strdup_printf("%s/.lock-%s", parent, key);
    g_autofree char *temporary = g_strdup_printf("%s/.new-%s", parent, key);
    if (sp_boot_image_exists(path))
        return true;
    if (mkdir(parent, 0700) < 0 && errno != EEXIST) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "make %s", parent);
        return false;
    }
    SP_CLEANUP(sp_close_fdp) int lock = sp_file_lock(lock_path, BUILD_LOCK_MS, error);
    if (lock < 0)
        return false;
    /* Someone else may have made it meanwhile. */
    return sp_boot_image_exists(path) || build_locked(vm, build, temporary, path, error);
}
