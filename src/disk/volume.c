#include "disk/volume.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "disk/btrfs.h"
#include "disk/loop.h"
#include "disk/mount_point.h"
#include "disk/program.h"
#include "os/file_lock.h"
#include "os/mount.h"

#define MIN_BYTES (256ULL << 20)
#define MAX_BYTES (256ULL << 30)
#define LOCK_MS 120000
#define MKFS_MS 60000
#define LOOP_CLEAR_MS 3000

struct sp_volume {
    char *dir;
    char *backing; /* <state>/data.btrfs, or NULL when the directory is not a mount of ours */
    enum sp_volume_kind kind;
    char *reason;
    struct groups *groups; /* never NULL */
};

/* Quota groups of deleted subvolumes that the kernel has not let go yet, the oldest first. An id is
 * not used again as long as the file system is mounted. */
struct groups {
    GMutex lock;
    GQueue ids; /* of uint64_t, allocated */
};

static const struct {
    const char *name;
    mode_t mode;
} folders[] = {{"templates", 0755}, {"layers", 0711}, {"saved", 0700}, {"tmp", 0700}};

static int lock_state(const char *state_dir, GError **error)
{
    g_autofree char *path = g_build_filename(state_dir, "data.lock", NULL);
    return sp_file_lock(path, LOCK_MS, error);
}

/* A sparse file with an empty btrfs on it, made under another name first: a file called data.btrfs
 * is always a whole file system. */
static bool make_backing(const char *backing, uint64_t bytes, GError **error)
{
    g_autofree char *fresh = g_strconcat(backing, ".new", NULL);
    if (unlink(fresh) < 0 && errno != ENOENT) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "remove %s", fresh);
        return false;
    }
    int fd = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "make %s", fresh);
        return false;
    }
    /* Copy-on-write below copy-on-write fragments without end; only btrfs knows the flag. */
    int flags = 0;
    if (ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 && sp_btrfs_is(fd)) {
        flags |= FS_NOCOW_FL;
        ioctl(fd, FS_IOC_SETFLAGS, &flags);
    }
    int failure = ftruncate(fd, (off_t)bytes) < 0 ? errno : 0;
    close(fd);
    /* One copy of the metadata: the file system below answers for its blocks. */
    const char *const argv[] = {"mkfs.btrfs", "-q",     "-f",  "-m", "single",
                                "-d",         "single", fresh, NULL};
    const struct sp_program mkfs = {.argv = argv, .timeout_ms = MKFS_MS};
    bool made = false;
    if (failure != 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, failure, "truncate %s", fresh);
    } else if (sp_program_run(&mkfs, error)) {
        made = rename(fresh, backing) == 0;
        if (!made) {
            sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "rename %s", fresh);
        }
    }
    if (!made) {
        unlink(fresh);
    }
    return made;
}

static bool mount_backing(const char *backing, const char *dir, GError **error)
{
    int file = open(backing, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", backing);
        return false;
    }
    char device[SP_LOOP_PATH_MAX];
    int loop = sp_loop_attach(file, false, device, error);
    close(file);
    if (loop < 0) {
        return false;
    }
    bool mounted =
        mount(device, dir, "btrfs", MS_NOATIME | MS_NOSUID | MS_NODEV, "discard=async") == 0;
    if (!mounted) {
        sp_error_set_errno(error, errno == ENODEV ? SP_ERROR_UNSUPPORTED : SP_ERROR_INTERNAL, errno,
                           "mount %s", backing);
    }
    close(loop); /* the last user if the mount failed: the device clears itself */
    return mounted;
}

/* Quota groups, and the folders that everything else relies on. */
static bool prepare(const struct sp_volume *volume, GError **error)
{
    int fd = open(volume->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", volume->dir);
        return false;
    }
    const char *step = NULL;
    if (volume->kind == SP_VOLUME_BTRFS && sp_btrfs_quota_enable(fd) < 0) {
        step = "enable quota groups in";
    } else if (volume->backing != NULL && volume->kind == SP_VOLUME_BTRFS &&
               sp_btrfs_qgroups_sweep(fd) < 0) { /* what an ended worker could not remove yet */
        step = "remove old quota groups of";
    } else if (fchmod(fd, 0711) < 0) {
        step = "set the mode of";
    }
    for (size_t i = 0; step == NULL && i < G_N_ELEMENTS(folders); i++) {
        if (mkdirat(fd, folders[i].name, folders[i].mode) < 0 && errno != EEXIST) {
            step = "make a folder in";
        }
    }
    if (step != NULL) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "%s %s", step, volume->dir);
    }
    close(fd);
    return step == NULL;
}

/* Whether nothing is kept in the directory. Takes away our folders where they are empty: prepare()
 * makes them again. */
static bool dir_is_unused(const char *path)
{
    for (size_t i = 0; i < G_N_ELEMENTS(folders); i++) {
        g_autofree char *folder = g_build_filename(path, folders[i].name, NULL);
        if (rmdir(folder) < 0 && errno != ENOENT) {
            return false;
        }
    }
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    return dir != NULL && g_dir_read_name(dir) == NULL;
}

static bool dir_is_quota_btrfs(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool usable = fd >= 0 && sp_btrfs_is(fd) && sp_btrfs_quota_enabled(fd);
    if (fd >= 0) {
        close(fd);
    }
    return usable;
}

static bool default_bytes(const char *state_dir, uint64_t *ret_bytes, GError **error)
{
    struct statvfs fs;
    if (statvfs(state_dir, &fs) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "statvfs %s", state_dir);
        return false;
    }
    uint64_t available = (uint64_t)fs.f_bavail * fs.f_frsize;
    uint64_t bytes = MIN(available / 10 * 8, MAX_BYTES) & ~0xfffffULL;
    if (bytes < MIN_BYTES) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE,
                    "only %" G_GUINT64_FORMAT " MiB are free", available >> 20);
        return false;
    }
    *ret_bytes = bytes;
    return true;
}

static bool make_and_mount(struct sp_volume *volume, const char *state_dir, uint64_t max_bytes,
                           GError **error)
{
    uint64_t bytes = max_bytes;
    if (geteuid() != 0) {
        g_set_error(error, SP_ERROR, SP_ERROR_PERMISSION_DENIED, "not root");
        return false;
    }
    if (bytes == 0 && !default_bytes(state_dir, &bytes, error)) {
        return false;
    }
    if (!make_backing(volume->backing, bytes, error)) {
        return false;
    }
    if (!mount_backing(volume->backing, volume->dir, error)) {
        unlink(volume->backing); /* nothing is in it, and the plain directory is used from now on */
        return false;
    }
    return true;
}

/* Decides what the data directory is and makes it that; under the lock. */
static bool settle_kind(struct sp_volume *volume, const char *state_dir, uint64_t max_bytes,
                        GError **error)
{
    g_autoptr(GError) why = NULL;
    bool mounted = sp_mount_is_point(volume->dir);
    volume->kind = SP_VOLUME_BTRFS;
    if (access(volume->backing, F_OK) == 0) {
        return mounted || mount_backing(volume->backing, volume->dir, error);
    }
    if (dir_is_quota_btrfs(volume->dir)) {
        g_clear_pointer(&volume->backing, g_free);
    } else if (mounted || !dir_is_unused(volume->dir)) {
        volume->kind = SP_VOLUME_PLAIN;
        g_clear_pointer(&volume->backing, g_free);
    } else if (!make_and_mount(volume, state_dir, max_bytes, &why)) {
        volume->kind = SP_VOLUME_PLAIN;
        volume->reason = g_strdup(why->message);
        g_clear_pointer(&volume->backing, g_free);
    }
    return true;
}

struct sp_volume *sp_volume_open(const char *state_dir, uint64_t max_bytes, GError **error)
{
    if (!g_path_is_absolute(state_dir) || (max_bytes != 0 && max_bytes < MIN_BYTES)) {
        g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                    "a volume needs an absolute path and at least 256 MiB");
        return NULL;
    }
    struct sp_volume *volume = g_new0(struct sp_volume, 1);
    volume->groups = g_new0(struct groups, 1);
    g_mutex_init(&volume->groups->lock);
    g_queue_init(&volume->groups->ids);
    volume->dir = g_build_filename(state_dir, "data", NULL);
    volume->backing = g_build_filename(state_dir, "data.btrfs", NULL);
    int lock = lock_state(state_dir, error);
    bool opened = lock >= 0;
    if (opened && mkdir(volume->dir, 0711) < 0 && errno != EEXIST) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "make %s", volume->dir);
        opened = false;
    }
    opened = opened && settle_kind(volume, state_dir, max_bytes, error) && prepare(volume, error);
    if (lock >= 0) {
        close(lock);
    }
    if (!opened) {
        g_prefix_error(error, "data directory: ");
        g_clear_pointer(&volume, sp_volume_close);
    }
    return volume;
}

void sp_volume_close(struct sp_volume *volume)
{
    if (volume != NULL) {
        g_free(volume->dir);
        g_free(volume->backing);
        g_free(volume->reason);
        g_queue_clear_full(&volume->groups->ids, g_free);
        g_mutex_clear(&volume->groups->lock);
        g_free(volume->groups);
        g_free(volume);
    }
}

bool sp_volume_unmount(const char *state_dir, GError **error)
{
    int lock = lock_state(state_dir, error);
    if (lock < 0) {
        return false;
    }
    g_autofree char *dir = g_build_filename(state_dir, "data", NULL);
    g_autofree char *backing = g_build_filename(state_dir, "data.btrfs", NULL);
    bool done = true;
    if (sp_mount_is_point(dir) && access(backing, F_OK) == 0) {
        done = sp_mount_point_remove(dir, LOOP_CLEAR_MS, error);
    }
    close(lock);
    return done;
}

const char *sp_volume_dir(const struct sp_volume *volume)
{
    return volume->dir;
}

enum sp_volume_kind sp_volume_kind(const struct sp_volume *volume)
{
    return volume->kind;
}

const char *sp_volume_reason(const struct sp_volume *volume)
{
    return volume->reason;
}

static uint64_t free_of(const char *path)
{
    struct statvfs fs;
    return statvfs(path, &fs) == 0 ? (uint64_t)fs.f_bavail * fs.f_frsize : 0;
}

uint64_t sp_volume_free_bytes(const struct sp_volume *volume)
{
    uint64_t bytes = free_of(volume->dir);
    if (volume->backing != NULL) {
        bytes = MIN(bytes, free_of(volume->backing));
    }
    return bytes;
}

/* From the oldest on until one is refused. */
static void drop_groups(const struct sp_volume *volume, int fd)
{
    struct groups *groups = volume->groups;
    g_mutex_lock(&groups->lock);
    uint64_t *id;
    while ((id = g_queue_peek_head(&groups->ids)) != NULL && sp_btrfs_qgroup_remove(fd, *id) == 0) {
        g_free(g_queue_pop_head(&groups->ids));
    }
    g_mutex_unlock(&groups->lock);
}

void sp_volume_drop_group(const struct sp_volume *volume, uint64_t id)
{
    int fd = open(volume->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    if (sp_btrfs_qgroup_remove(fd, id) < 0 && errno == EBUSY) {
        g_mutex_lock(&volume->groups->lock);
        g_queue_push_tail(&volume->groups->ids, g_memdup2(&id, sizeof(id)));
        g_mutex_unlock(&volume->groups->lock);
    }
    drop_groups(volume, fd);
    close(fd);
}

bool sp_volume_reclaim(const struct sp_volume *volume, int64_t timeout_ms, GError **error)
{
    if (volume->kind != SP_VOLUME_BTRFS) {
        return true;
    }
    int fd = open(volume->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failure = fd < 0 || sp_btrfs_reclaim(fd, timeout_ms) < 0 ? errno : 0;
    if (fd >= 0) {
        drop_groups(volume, fd);
        close(fd);
    }
    if (failure != 0) {
        sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, failure, "reclaim space of %s",
                           volume->dir);
    }
    return failure == 0;
}
