#include "cli/doctor_checks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <linux/magic.h>

#include "base/error.h"
#include "cli/database.h"
#include "cli/programs.h"
#include "disk/program.h"
#include "os/cgroup.h"
#include "os/cleanup.h"
#include "store/where.h"

#define PROGRAM_TIMEOUT_MS 10000
/* cgroup.kill and mount_setattr() with id-mapped mounts of erofs' and overlay's layers. */
#define KERNEL_MAJOR 5
#define KERNEL_MINOR 15
#define MEMORY_WANTED_MB 1024
#define DISK_WANTED_MB 4096

static bool check_root(const struct sp_check_context *context, char **ret_detail)
{
    bool root = geteuid() == 0;
    *ret_detail = root ? g_strdup("root") : g_strdup_printf("uid %u; start it as root", geteuid());
    return root;
}

static bool check_kernel(const struct sp_check_context *context, char **ret_detail)
{
    struct utsname name;
    int major = 0, minor = 0;
    bool ok = uname(&name) == 0 && sscanf(name.release, "%d.%d", &major, &minor) == 2 &&
              (major > KERNEL_MAJOR || (major == KERNEL_MAJOR && minor >= KERNEL_MINOR));
    *ret_detail = ok ? g_strdup_printf("Linux %s", name.release)
                     : g_strdup_printf("Linux %s; %d.%d or newer is needed", name.release,
                                       KERNEL_MAJOR, KERNEL_MINOR);
    return ok;
}

static int64_t read_number(const char *path)
{
    g_autofree char *text = NULL;
    if (!g_file_get_contents(path, &text, NULL, NULL))
        return -1;
    return g_ascii_strtoll(text, NULL, 10);
}

static bool check_namespaces(const struct sp_check_context *context, char **ret_detail)
{
    static const char *const kinds[] = {"user", "pid", "net", "mnt", "uts", "ipc", "cgroup"};
    for (size_t i = 0; i < G_N_ELEMENTS(kinds); i++) {
        g_autofree char *link = g_strdup_printf("/proc/self/ns/%s", kinds[i]);
        g_autofree char *limit = g_strdup_printf("/proc/sys/user/max_%s_namespaces", kinds[i]);
        if (access(link, F_OK) != 0 || read_number(limit) == 0) {
            *ret_detail = g_strdup_printf("no %s namespaces (%s)", kinds[i], limit);
            return false;
        }
    }
    *ret_detail = g_strdup("all kinds");
    return true;
}

static bool check_cgroups(const struct sp_check_context *context, char **ret_detail)
{
    g_autoptr(GError) error = NULL;
    SP_CLEANUP(sp_cgroups_free_p)
    struct sp_cgroups *cgroups = sp_cgroups_open(NULL, "space-doctor", &error);
    *ret_detail = g_strdup(cgroups ? sp_cgroups_kind_name(cgroups) : error->message);
    return cgroups != NULL;
}

static bool has_file_system(const char *name)
{
    g_autofree char *text = NULL;
    g_autofree char *wanted = g_strdup_printf("\t%s\n", name);
    return g_file_get_contents("/proc/filesystems", &text, NULL, NULL) && strstr(text, wanted);
}

/* There, or a module that the kernel loads at the first mount. */
static bool check_file_system(const char *name, char **ret_detail)
{
    struct utsname kernel;
    bool ok = has_file_system(name);
    *ret_detail = g_strdup(ok ? "in the kernel" : "not in this kernel");
    if (ok || uname(&kernel) != 0)
        return ok;
    g_autofree char *dep = g_strdup_printf("/lib/modules/%s/modules.dep", kernel.release);
    g_autofree char *text = NULL;
    g_autofree char *module = g_strdup_printf("/%s.ko", name);
    if (!g_file_get_contents(dep, &text, NULL, NULL) || !strstr(text, module))
        return false;
    g_free(*ret_detail);
    *ret_detail = g_strdup("as a module");
    return true;
}

static bool check_erofs(const struct sp_check_context *context, char **ret_detail)
{
    return check_file_system("erofs", ret_detail);
}

static bool check_overlay(const struct sp_check_context *context, char **ret_detail)
{
    return check_file_system("overlay", ret_detail);
}

static bool check_btrfs(const struct sp_check_context *context, char **ret_detail)
{
    bool ok = check_file_system("btrfs", ret_detail);
    if (!ok) {
        g_free(*ret_detail);
        *ret_detail =
            g_strdup("not in this kernel: disks are copied, container disks are in memory");
    }
    return ok;
}

static bool check_loop(const struct sp_check_context *context, char **ret_detail)
{
    bool ok = access("/dev/loop-control", R_OK | W_OK) == 0;
    *ret_detail = ok ? g_strdup("/dev/loop-control")
                     : g_strdup_printf("/dev/loop-control: %s", g_strerror(errno));
    return ok;
}

static bool check_kvm(const struct sp_check_context *context, char **ret_detail)
{
    SP_CLEANUP(sp_close_fdp) int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    *ret_detail = fd >= 0
                      ? g_strdup("/dev/kvm opens (whether guests run in it is tried by the worker)")
                      : g_strdup_printf("/dev/kvm: %s; microVMs run in software emulation",
                                        g_strerror(errno));
    return fd >= 0;
}

struct version_line {
    const char *program;
    char *text; /* the first line, or better one that begins with the program's name and a digit */
    bool exact;
};

/* Some print their usage around the version, or exit with 1 (mkfs.erofs). */
static void keep_version(void *user, const char *line)
{
    struct version_line *v = user;
    const char *rest = g_str_has_prefix(line, v->program) ? line + strlen(v->program) : "";
    bool exact = rest[0] == ' ' && g_ascii_isdigit(rest[1]);
    if (*line == '\0' || v->exact || (v->text && !exact))
        return;
    g_free(v->text);
    v->text = g_strdup(line);
    v->exact = exact;
}

static bool check_program(const char *name, const char *package, char **ret_detail)
{
    const char *argv[] = {name, "--version", NULL};
    struct version_line version = {.program = name};
    struct sp_program program = {
        .argv = argv, .timeout_ms = PROGRAM_TIMEOUT_MS, .progress = keep_version, .user = &version};
    g_autoptr(GError) error = NULL;
    bool ok = sp_program_run(&program, &error) || version.exact;
    if (!ok && g_error_matches(error, SP_ERROR, SP_ERROR_UNSUPPORTED))
        *ret_detail = g_strdup_printf("not installed (package %s)", package);
    else
        *ret_detail = g_strdup(!ok ? error->message : version.text ? version.text : "installed");
    g_free(version.text);
    return ok;
}

static bool check_qemu(const struct sp_check_context *context, char **ret_detail)
{
    return check_program("qemu-system-x86_64", "qemu-system-x86", ret_detail);
}

static bool check_mkfs_erofs(const struct sp_check_context *context, char **ret_detail)
{
    return check_program("mkfs.erofs", "erofs-utils", ret_detail);
}

static bool check_mmdebstrap(const struct sp_check_context *context, char **ret_detail)
{
    return check_program("mmdebstrap", "mmdebstrap", ret_detail);
}

static bool check_mkfs_btrfs(const struct sp_check_context *context, char **ret_detail)
{
    return check_program("mkfs.btrfs", "btrfs-progs", ret_detail);
}

static bool check_agent(const struct sp_check_context *context, char **ret_detail)
{
    g_autofree char *path = sp_program_agent();
    bool ok = access(path, X_OK) == 0;
    *ret_detail = ok ? g_strdup(path) : g_strdup_printf("%s: %s", path, g_strerror(errno));
    return ok;
}

static bool check_guest_kernel(const struct sp_check_context *context, char **ret_detail)
{
    g_autofree char *dir = sp_program_guest_dir();
    g_autofree char *path = g_build_filename(dir, "vmlinux", NULL);
    bool ok = access(path, R_OK) == 0;
    *ret_detail = ok ? g_strdup(path)
                     : g_strdup_printf("%s: %s (`make guest` makes it)", path, g_strerror(errno));
    return ok;
}

static bool check_memory(const struct sp_check_context *context, char **ret_detail)
{
    g_autofree char *text = NULL;
    const char *line = g_file_get_contents("/proc/meminfo", &text, NULL, NULL)
                           ? strstr(text, "MemAvailable:")
                           : NULL;
    int64_t mb = line ? g_ascii_strtoll(line + strlen("MemAvailable:"), NULL, 10) / 1024 : 0;
    *ret_detail = g_strdup_printf("%" G_GINT64_FORMAT " MB available", mb);
    return mb >= MEMORY_WANTED_MB;
}

/* The state directory, or the nearest directory above that exists. */
static char *existing_directory(const char *path)
{
    g_autofree char *at = g_strdup(path);
    while (access(at, F_OK) != 0 && strcmp(at, "/") != 0) {
        char *parent = g_path_get_dirname(at);
        g_free(at);
        at = parent;
    }
    return g_steal_pointer(&at);
}

static bool check_disk(const struct sp_check_context *context, char **ret_detail)
{
    g_autofree char *path = existing_directory(context->state_dir);
    struct statvfs fs;
    if (statvfs(path, &fs) != 0) {
        *ret_detail = g_strdup_printf("%s: %s", path, g_strerror(errno));
        return false;
    }
    uint64_t mb = (uint64_t)fs.f_bavail * fs.f_frsize >> 20;
    *ret_detail = g_strdup_printf("%" G_GUINT64_FORMAT " MB free at %s", (guint64)mb, path);
    return mb >= DISK_WANTED_MB;
}

static bool check_state_kind(const struct sp_check_context *context, char **ret_detail)
{
    static const struct {
        long magic;
        const char *name;
    } kinds[] = {{BTRFS_SUPER_MAGIC, "btrfs: reflinks and quotas"},
                 {0x58465342, "xfs"}, /* XFS_SUPER_MAGIC, not in linux/magic.h */
                 {EXT4_SUPER_MAGIC, "ext4"},
                 {TMPFS_MAGIC, "tmpfs: gone after a reboot"},
                 {OVERLAYFS_SUPER_MAGIC, "overlay"}};
    g_autofree char *data = g_build_filename(context->state_dir, "data", NULL);
    g_autofree char *path = existing_directory(data);
    struct statfs fs;
    if (statfs(path, &fs) != 0) {
        *ret_detail = g_strdup_printf("%s: %s", path, g_strerror(errno));
        return false;
    }
    const char *name = "another file system";
    for (size_t i = 0; i < G_N_ELEMENTS(kinds); i++) {
        if ((long)fs.f_type == kinds[i].magic)
            name = kinds[i].name;
    }
    bool btrfs = fs.f_type == BTRFS_SUPER_MAGIC;
    *ret_detail =
        g_strdup_printf("%s is on %s%s", path, name,
                        btrfs ? "" : " (`space up` makes a btrfs volume in it if it can)");
    return btrfs || has_file_system("btrfs");
}

static bool check_database(const struct sp_check_context *context, char **ret_detail)
{
    g_autofree char *url = NULL;
    g_autoptr(GError) error = NULL;
    if (!sp_database_kept(context->state_dir, &url, &error)) {
        *ret_detail = g_strdup(error->message);
        return false;
    }
    if (!url) {
        *ret_detail = g_strdup_printf("SQLite, %s/server/space.db", context->state_dir);
        return true;
    }
    g_autofree char *shown = sp_where_describe(url);
    bool ok = sp_where_probe(url, &error);
    *ret_detail = ok ? g_steal_pointer(&shown) : g_strdup(error->message);
    return ok;
}

const struct sp_check sp_checks[] = {
    {"root", SP_NEED_CONTAINER, check_root},
    {"kernel", SP_NEED_ALL, check_kernel},
    {"space-agent", SP_NEED_ALL, check_agent},
    {"memory", SP_NEED_ALL, check_memory},
    {"disk", SP_NEED_ALL, check_disk},
    {"database", SP_NEED_ALL, check_database},
    {"namespaces", SP_NEED_CONTAINER, check_namespaces},
    {"cgroups", SP_NEED_CONTAINER, check_cgroups},
    {"overlay", SP_NEED_CONTAINER, check_overlay},
    {"erofs", SP_NEED_CONTAINER, check_erofs},
    {"loop devices", SP_NEED_CONTAINER, check_loop},
    {"qemu", SP_NEED_MICROVM, check_qemu},
    {"guest kernel", SP_NEED_MICROVM, check_guest_kernel},
    {"mkfs.erofs", SP_NEED_BUILD, check_mkfs_erofs},
    {"mmdebstrap", SP_NEED_BUILD, check_mmdebstrap},
    {"kvm", SP_NEED_BETTER, check_kvm},
    {"btrfs", SP_NEED_BETTER, check_btrfs},
    {"mkfs.btrfs", SP_NEED_BETTER, check_mkfs_btrfs},
    {"state directory", SP_NEED_BETTER, check_state_kind},
    {0},
};

const char *sp_need_text(enum sp_need need)
{
    static const char *const texts[] = {
        [SP_NEED_ALL] = "everything",
        [SP_NEED_CONTAINER] = "the container tier",
        [SP_NEED_MICROVM] = "the microvm tier",
        [SP_NEED_BUILD] = "building templates",
        [SP_NEED_BETTER] = "speed",
    };
    return texts[need];
}

json_t *sp_check_run(const struct sp_check *check, const struct sp_check_context *context)
{
    g_autofree char *detail = NULL;
    bool ok = check->run(context, &detail);
    return json_pack("{s:s, s:b, s:s, s:o}", "name", check->name, "ok", ok, "needed_for",
                     sp_need_text(check->need), "detail", sp_json_text(detail));
}
