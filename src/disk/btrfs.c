#include "disk/btrfs.h"

#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <linux/btrfs.h>
#include <linux/btrfs_tree.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/time.h"

/* Values of a node of the file system in sysfs (/sys/fs/btrfs/<uuid>/…, kernel documentation
 * btrfs(5) "sysfs"); NULL where the kernel has no such file. */
static char *sysfs_path(int fd, const char *name)
{
    struct btrfs_ioctl_fs_info_args info = {0};
    if (ioctl(fd, BTRFS_IOC_FS_INFO, &info) < 0) {
        return NULL;
    }
    GString *path = g_string_new("/sys/fs/btrfs/");
    for (int i = 0; i < BTRFS_FSID_SIZE; i++) {
        g_string_append_printf(path, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                               info.fsid[i]);
    }
    g_string_append_printf(path, "/%s", name);
    return g_string_free(path, FALSE);
}

/* Whether a file of sysfs begins with '1'. */
static bool sysfs_is_on(int fd, const char *name)
{
    g_autofree char *path = sysfs_path(fd, name);
    g_autofree char *text = NULL;
    return path != NULL && g_file_get_contents(path, &text, NULL, NULL) && text[0] == '1';
}

bool sp_btrfs_is(int fd)
{
    struct statfs fs;
    return fstatfs(fd, &fs) == 0 && fs.f_type == BTRFS_SUPER_MAGIC;
}

bool sp_btrfs_quota_enabled(int fd)
{
    return sysfs_is_on(fd, "qgroups/enabled");
}

int sp_btrfs_quota_enable(int fd)
{
    struct btrfs_ioctl_quota_ctl_args args = {.cmd = BTRFS_QUOTA_CTL_ENABLE};
    if (ioctl(fd, BTRFS_IOC_QUOTA_CTL, &args) < 0) {
        return -1;
    }
    /* Newer kernels stop counting (and so limiting) when a tall tree is dropped; count always. */
    g_autofree char *threshold = sysfs_path(fd, "qgroups/drop_subtree_threshold");
    int file = threshold != NULL ? open(threshold, O_WRONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        ssize_t written = write(file, "8", 1);
        close(file);
        if (written != 1) {
            return -1;
        }
    }
    if (sysfs_is_on(fd, "qgroups/inconsistent")) {
        struct btrfs_ioctl_quota_rescan_args rescan = {0};
        if (ioctl(fd, BTRFS_IOC_QUOTA_RESCAN, &rescan) < 0 && errno != EINPROGRESS) {
            return -1;
        }
    }
    return 0;
}

/* The id of the subvolume that fd is in, which is also the id of its quota group (level 0). */
static int subvolume_id(int fd, uint64_t *ret_id)
{
    struct btrfs_ioctl_ino_lookup_args args = {.objectid = BTRFS_FIRST_FREE_OBJECTID};
    if (ioctl(fd, BTRFS_IOC_INO_LOOKUP, &args) < 0) {
        return -1;
    }
    *ret_id = args.treeid;
    return 0;
}

int sp_btrfs_subvolume_create(int dir_fd, const char *name, uint64_t limit_bytes)
{
    struct btrfs_qgroup_inherit inherit = {
        .flags = BTRFS_QGROUP_INHERIT_SET_LIMITS,
        .lim = {.flags = BTRFS_QGROUP_LIMIT_MAX_RFER, .max_rfer = limit_bytes},
    };
    struct btrfs_ioctl_vol_args_v2 args = {
        .flags = BTRFS_SUBVOL_QGROUP_INHERIT,
        .size = sizeof(inherit),
        .qgroup_inherit = &inherit,
    };
    if (g_strlcpy(args.name, name, sizeof(args.name)) >= sizeof(args.name)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return ioctl(dir_fd, BTRFS_IOC_SUBVOL_CREATE_V2, &args);
}

int sp_btrfs_snapshot(int dir_fd, const char *name, int source_fd, bool read_only)
{
    struct btrfs_ioctl_vol_args_v2 args = {
        .fd = source_fd,
        .flags = read_only ? BTRFS_SUBVOL_RDONLY : 0,
    };
    if (g_strlcpy(args.name, name, sizeof(args.name)) >= sizeof(args.name)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return ioctl(dir_fd, BTRFS_IOC_SNAP_CREATE_V2, &args);
}

int sp_btrfs_subvolume_limit(int fd, uint64_t limit_bytes)
{
    struct btrfs_ioctl_qgroup_limit_args args = {
        .lim = {.flags = BTRFS_QGROUP_LIMIT_MAX_RFER, .max_rfer = limit_bytes},
    };
    if (subvolume_id(fd, (uint64_t *)&args.qgroupid) < 0) {
        return -1;
    }
    return ioctl(fd, BTRFS_IOC_QGROUP_LIMIT, &args);
}

int sp_btrfs_qgroup_remove(int fd, uint64_t id)
{
    struct btrfs_ioctl_qgroup_create_args qgroup = {.create = 0, .qgroupid = id};
    return ioctl(fd, BTRFS_IOC_QGROUP_CREATE, &qgroup) < 0 && errno != ENOENT ? -1 : 0;
}

/* Whether the tree of roots knows a subvolume, if only as one that is being deleted. */
static bool subvolume_exists(int fd, uint64_t id)
{
    struct btrfs_ioctl_search_args args = {
        .key =
            {
                .tree_id = BTRFS_ROOT_TREE_OBJECTID,
                .min_objectid = id,
                .max_objectid = id,
                .min_type = BTRFS_ROOT_ITEM_KEY,
                .max_type = BTRFS_ROOT_ITEM_KEY,
                .max_offset = UINT64_MAX,
                .max_transid = UINT64_MAX,
                .nr_items = 1,
            },
    };
    return ioctl(fd, BTRFS_IOC_TREE_SEARCH, &args) < 0 || args.key.nr_items > 0;
}

/* The ids of the subvolumes that have, or had, a quota group. */
static GArray *list_qgroups(int fd)
{
    GArray *ids = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    g_autofree char *path = sysfs_path(fd, "qgroups");
    g_autoptr(GDir) dir = path != NULL ? g_dir_open(path, 0, NULL) : NULL;
    const char *name;
    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
        /* "<level>_<id>"; below the first free one are the file system's own trees. */
        uint64_t id = g_str_has_prefix(name, "0_") ? g_ascii_strtoull(name + 2, NULL, 10) : 0;
        if (id >= BTRFS_FIRST_FREE_OBJECTID) {
            g_array_append_val(ids, id);
        }
    }
    return ids;
}

int sp_btrfs_qgroups_sweep(int fd)
{
    g_autoptr(GArray) ids = list_qgroups(fd);
    /* A subvolume that is just being made has its quota group first; the commit waits for it. */
    if (ids->len > 0 && ioctl(fd, BTRFS_IOC_SYNC) < 0) {
        return -1;
    }
    for (guint i = 0; i < ids->len; i++) {
        uint64_t id = g_array_index(ids, uint64_t, i);
        if (!subvolume_exists(fd, id)) {
            sp_btrfs_qgroup_remove(fd, id);
        }
    }
    return 0;
}

uint64_t sp_btrfs_subvolume_id(int dir_fd, const char *name)
{
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    uint64_t id = 0;
    /* The root of a subvolume always has this inode number, and nothing else has it. */
    if (fd >= 0 && (fstat(fd, &st) < 0 || st.st_ino != BTRFS_FIRST_FREE_OBJECTID ||
                    subvolume_id(fd, &id) < 0)) {
        id = 0;
    }
    if (fd >= 0) {
        close(fd);
    }
    return id;
}

int64_t sp_btrfs_subvolume_bytes(int dir_fd, const char *name)
{
    char file[64];
    g_snprintf(file, sizeof file, "qgroups/0_%" G_GUINT64_FORMAT "/referenced",
               sp_btrfs_subvolume_id(dir_fd, name));
    g_autofree char *path = sysfs_path(dir_fd, file);
    g_autofree char *text = NULL;
    bool known = path != NULL && g_file_get_contents(path, &text, NULL, NULL);
    return known ? g_ascii_strtoll(text, NULL, 10) : 0;
}

int sp_btrfs_subvolume_destroy(int dir_fd, const char *name)
{
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    struct stat st;
    uint64_t id = 0;
    /* The root of a subvolume always has this inode number, and nothing else has it. */
    int failed = fstat(fd, &st) < 0 || subvolume_id(fd, &id) < 0 ? errno : 0;
    if (failed == 0 && st.st_ino != BTRFS_FIRST_FREE_OBJECTID) {
        failed = EINVAL;
    }
    close(fd);
    if (failed != 0) {
        errno = failed;
        return -1;
    }
    struct btrfs_ioctl_vol_args args = {0};
    if (g_strlcpy(args.name, name, sizeof(args.name)) >= sizeof(args.name)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    if (ioctl(dir_fd, BTRFS_IOC_SNAP_DESTROY, &args) < 0) {
        return -1;
    }
    /* Linux before 6.10 and without its fixes would keep the quota group for ever; others refuse
     * (EBUSY) until the cleaner is done. */
    sp_btrfs_qgroup_remove(dir_fd, id);
    return 0;
}

/* Whether deleted subvolumes wait for the cleaner: each has an orphan item in the tree of roots. */
static int has_orphans(int fd, bool *ret_orphans)
{
    struct btrfs_ioctl_search_args args = {
        .key =
            {
                .tree_id = BTRFS_ROOT_TREE_OBJECTID,
                .min_objectid = BTRFS_ORPHAN_OBJECTID,
                .max_objectid = BTRFS_ORPHAN_OBJECTID,
                .min_type = BTRFS_ORPHAN_ITEM_KEY,
                .max_type = BTRFS_ORPHAN_ITEM_KEY,
                .max_offset = UINT64_MAX,
                .max_transid = UINT64_MAX,
                .nr_items = 1,
            },
    };
    if (ioctl(fd, BTRFS_IOC_TREE_SEARCH, &args) < 0) {
        return -1;
    }
    *ret_orphans = args.key.nr_items > 0;
    return 0;
}

int sp_btrfs_reclaim(int fd, int64_t timeout_ms)
{
    int64_t deadline = sp_time_monotonic_ms() + timeout_ms;
    for (;;) {
        /* The commit, and the kick that the cleaner gets behind it. */
        if (ioctl(fd, BTRFS_IOC_SYNC) < 0) {
            return -1;
        }
        bool orphans;
        if (has_orphans(fd, &orphans) < 0) {
            return -1;
        }
        if (!orphans) {
            return ioctl(fd, BTRFS_IOC_SYNC);
        }
        if (sp_time_monotonic_ms() >= deadline) {
            errno = ETIMEDOUT;
            return -1;
        }
        g_usleep(20000);
    }
}
