#include "disk/layer.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/ids.h"
#include "base/limits.h"
#include "disk/btrfs.h"
#include "disk/copy_tree.h"
#include "disk/tree.h"
#include "os/mount.h"

/* One for each page of data: a tmpfs inode costs about 1 KiB of kernel memory. */
#define INODES_PER_MB 256

static bool check(const char *id, int64_t disk_mb, GError **error)
{
    size_t len = strlen(id);
    bool valid = len > 0 && len < SP_ID_MAX && g_ascii_isalnum(id[0]);
    for (size_t i = 0; i < len && valid; i++) {
        valid = g_ascii_isalnum(id[i]) || id[i] == '_' || id[i] == '-';
    }
    if (!valid || disk_mb < 1 || disk_mb > INT64_MAX >> 20) {
        g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                    "not a layer: id \"%s\", %" G_GINT64_FORMAT " MiB", id, disk_mb);
        return false;
    }
    return true;
}

/* The folder of all layers; the caller closes it. */
static int open_layers(const struct sp_volume *volume, GError **error)
{
    g_autofree char *path = g_build_filename(sp_volume_dir(volume), "layers", NULL);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", path);
    }
    return fd;
}

char *sp_layer_path(const struct sp_volume *volume, const char *id)
{
    return g_build_filename(sp_volume_dir(volume), "layers", id, NULL);
}

static char *tmpfs_options(int64_t disk_mb)
{
    return g_strdup_printf("mode=0700,size=%" G_GINT64_FORMAT "m,nr_inodes=%" G_GINT64_FORMAT,
                           disk_mb, MAX(disk_mb * INODES_PER_MB, 1024));
}

/* The empty, limited file system; 0, or -1 with errno. */
static int make_space(const struct sp_volume *volume, int layers, const char *id, int64_t disk_mb)
{
    if (sp_volume_kind(volume) == SP_VOLUME_BTRFS) {
        return sp_btrfs_subvolume_create(layers, id, (uint64_t)disk_mb << 20);
    }
    if (mkdirat(layers, id, 0700) < 0) {
        return -1;
    }
    g_autofree char *path = sp_layer_path(volume, id);
    g_autofree char *options = tmpfs_options(disk_mb);
    if (mount("space-layer", path, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOATIME, options) < 0) {
        int saved = errno;
        unlinkat(layers, id, AT_REMOVEDIR);
        errno = saved;
        return -1;
    }
    return 0;
}

bool sp_layer_is_mapped(const struct sp_volume *volume)
{
    return sp_volume_kind(volume) == SP_VOLUME_BTRFS;
}

/* The way from the ids in a layer to those in a saved one. */
static struct sp_id_shift shift_of(const struct sp_volume *volume, uint32_t uid)
{
    return (struct sp_id_shift){
        .from = sp_layer_is_mapped(volume) ? 0 : uid, .to = 0, .count = SP_UID_BLOCK};
}

static int open_dir(int parent, const char *name)
{
    return openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static void close_keeping_errno(int fd)
{
    int saved = errno;
    if (fd >= 0) {
        close(fd);
    }
    errno = saved;
}

/* What overlayfs needs in it. from: a saved layer whose content goes in, -1 none. 0, or -1 with
 * errno. */
static int fill(const struct sp_volume *volume, int layers, const char *id, uint32_t uid, int from)
{
    uint32_t owner = sp_layer_is_mapped(volume) ? 0 : uid;
    /* The host's root, as driver/launcher.h maps it. */
    uint32_t mounter = sp_layer_is_mapped(volume) ? SP_UID_BLOCK : 0;
    struct sp_id_shift shift = shift_of(volume, uid);
    const struct sp_id_shift back = {.from = shift.to, .to = shift.from, .count = shift.count};
    int fd = open_dir(layers, id);
    if (fd < 0) {
        return -1;
    }
    int result = -1;
    if (fchmod(fd, 0700) == 0 &&
        (from >= 0 ? sp_copy_tree(from, "upper", fd, "upper", &back, NULL) == 0
                   : mkdirat(fd, "upper", 0755) == 0 && fchmodat(fd, "upper", 0755, 0) == 0 &&
                         fchownat(fd, "upper", owner, owner, AT_SYMLINK_NOFOLLOW) == 0) &&
        mkdirat(fd, "work", 0700) == 0 &&
        fchownat(fd, "work", mounter, mounter, AT_SYMLINK_NOFOLLOW) == 0) {
        result = 0;
    }
    int saved = errno;
    close(fd);
    errno = saved;
    return result;
}

/* Also of a layer that is only half made. 0, or -1 with errno. */
static int remove_layer(const struct sp_volume *volume, int layers, const char *id)
{
    if (sp_volume_kind(volume) == SP_VOLUME_BTRFS) {
        uint64_t group = sp_btrfs_subvolume_id(layers, id);
        if (sp_btrfs_subvolume_destroy(layers, id) == 0) {
            sp_volume_drop_group(volume, group);
            return 0;
        }
        if (errno == ENOENT) {
            return 0;
        }
        if (errno != EINVAL && errno != ENOTDIR) {
            return -1;
        }
    } else {
        g_autofree char *path = sp_layer_path(volume, id);
        while (sp_mount_is_point(path)) {
            if (umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) < 0) {
                return -1;
            }
        }
    }
    return sp_tree_remove_at(layers, id);
}

/* Tells why a layer could not be made. made: it was not there before. */
static bool check_made(const char *id, int failure, bool made, GError **error)
{
    if (failure != 0) {
        enum sp_error_code code = failure == EEXIST && !made               ? SP_ERROR_CONFLICT
                                  : failure == ENOSPC || failure == EDQUOT ? SP_ERROR_UNAVAILABLE
                                                                           : SP_ERROR_INTERNAL;
        sp_error_set_errno(error, code, failure, "make layer %s", id);
    }
    return failure == 0;
}

bool sp_layer_create(const struct sp_volume *volume, const char *id, int64_t disk_mb, uint32_t uid,
                     GError **error)
{
    if (!check(id, disk_mb, error)) {
        return false;
    }
    int layers = open_layers(volume, error);
    if (layers < 0) {
        return false;
    }
    int failure = 0;
    bool made = make_space(volume, layers, id, disk_mb) == 0;
    if (!made) {
        failure = errno;
    } else if (fill(volume, layers, id, uid, -1) < 0) {
        failure = errno;
        remove_layer(volume, layers, id);
    }
    close(layers);
    return check_made(id, failure, made, error);
}

/* A snapshot and its limit: 0, or -1 with errno. */
static int snapshot_with_limit(int layers, const char *id, int64_t disk_mb, int source)
{
    if (sp_btrfs_snapshot(layers, id, source, false) < 0) {
        return -1;
    }
    int fd = open_dir(layers, id);
    int result = fd < 0 ? -1 : sp_btrfs_subvolume_limit(fd, (uint64_t)disk_mb << 20);
    close_keeping_errno(fd);
    return result;
}

bool sp_layer_create_from(const struct sp_volume *volume, const char *id, int64_t disk_mb,
                          uint32_t uid, const char *saved_path, GError **error)
{
    if (!check(id, disk_mb, error)) {
        return false;
    }
    int source = open_dir(AT_FDCWD, saved_path);
    if (source < 0) {
        sp_error_set_errno(error, SP_ERROR_FAILED_PRECONDITION, errno, "saved layer %s",
                           saved_path);
        return false;
    }
    int layers = open_layers(volume, error);
    bool ok = false;
    if (layers >= 0) {
        bool exists = faccessat(layers, id, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
        int failure = exists ? EEXIST : 0;
        if (!exists &&
            (sp_layer_is_mapped(volume) ? snapshot_with_limit(layers, id, disk_mb, source) < 0
                                        : make_space(volume, layers, id, disk_mb) < 0 ||
                                              fill(volume, layers, id, uid, source) < 0)) {
            failure = errno;
            remove_layer(volume, layers, id);
        }
        close(layers);
        ok = check_made(id, failure, !exists, error);
    }
    close(source);
    return ok;
}

/* The layer of a volume as a directory; -1 with the error set. */
static int open_layer(const struct sp_volume *volume, const char *id, GError **error)
{
    g_autofree char *path = sp_layer_path(volume, id);
    int fd = check(id, 1, error) ? open_dir(AT_FDCWD, path) : -1;
    if (fd < 0 && (error == NULL || *error == NULL)) {
        sp_error_set_errno(error, errno == ENOENT ? SP_ERROR_NOT_FOUND : SP_ERROR_INTERNAL, errno,
                           "open layer %s", id);
    }
    return fd;
}

/* The part of a saved layer that is of use; the rest overlayfs makes anew. 0, or -1 with errno. */
static int copy_out(const struct sp_volume *volume, int layer, uint32_t uid, int dir_fd,
                    const char *name, int64_t *ret_bytes)
{
    struct sp_id_shift shift = shift_of(volume, uid);
    if (mkdirat(dir_fd, name, 0700) < 0) {
        return -1;
    }
    int to = open_dir(dir_fd, name);
    int result = to < 0 ? -1 : sp_copy_tree(layer, "upper", to, "upper", &shift, ret_bytes);
    close_keeping_errno(to);
    return result;
}

bool sp_layer_save(const struct sp_volume *volume, const char *id, uint32_t uid, int dir_fd,
                   const char *name, int64_t *ret_bytes, GError **error)
{
    int layer = open_layer(volume, id, error);
    if (layer < 0) {
        return false;
    }
    int64_t bytes = 0;
    int result;
    if (sp_layer_is_mapped(volume)) {
        result = sp_btrfs_snapshot(dir_fd, name, layer, true);
        bytes = result < 0 ? 0 : sp_btrfs_subvolume_bytes(dir_fd, name);
    } else {
        result = copy_out(volume, layer, uid, dir_fd, name, &bytes);
    }
    int failure = result < 0 ? errno : 0;
    close(layer);
    if (failure != 0) {
        sp_error_set_errno(error,
                           failure == ENOSPC || failure == EDQUOT ? SP_ERROR_UNAVAILABLE
                                                                  : SP_ERROR_INTERNAL,
                           failure, "save layer %s", id);
        return false;
    }
    *ret_bytes = bytes;
    return true;
}

bool sp_layer_sync(const struct sp_volume *volume, const char *id, GError **error)
{
    int layer = open_layer(volume, id, error);
    if (layer < 0) {
        return false;
    }
    /* A tmpfs has nowhere to write to. */
    int failure = sp_layer_is_mapped(volume) && syncfs(layer) < 0 ? errno : 0;
    close(layer);
    if (failure != 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, failure, "sync layer %s", id);
    }
    return failure == 0;
}

bool sp_layer_destroy(const struct sp_volume *volume, const char *id, GError **error)
{
    if (!check(id, 1, error)) {
        return false;
    }
    int layers = open_layers(volume, error);
    if (layers < 0) {
        return false;
    }
    int failure = remove_layer(volume, layers, id) < 0 ? errno : 0;
    close(layers);
    if (failure != 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, failure, "remove layer %s", id);
    }
    return failure == 0;
}

bool sp_layer_set_limit(const struct sp_volume *volume, const char *id, int64_t disk_mb,
                        GError **error)
{
    if (!check(id, disk_mb, error)) {
        return false;
    }
    g_autofree char *path = sp_layer_path(volume, id);
    int failure = 0;
    if (sp_volume_kind(volume) == SP_VOLUME_BTRFS) {
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        failure = fd < 0 || sp_btrfs_subvolume_limit(fd, (uint64_t)disk_mb << 20) < 0 ? errno : 0;
        if (fd >= 0) {
            close(fd);
        }
    } else if (!sp_mount_is_point(path)) {
        failure = ENOENT;
    } else {
        g_autofree char *options = tmpfs_options(disk_mb);
        unsigned long flags = MS_REMOUNT | MS_NOSUID | MS_NODEV | MS_NOATIME;
        failure = mount("space-layer", path, NULL, flags, options) < 0 ? errno : 0;
    }
    if (failure != 0) {
        enum sp_error_code code = failure == ENOENT   ? SP_ERROR_NOT_FOUND
                                  : failure == EINVAL ? SP_ERROR_FAILED_PRECONDITION
                                                      : SP_ERROR_INTERNAL;
        sp_error_set_errno(error, code, failure, "limit layer %s", id);
    }
    return failure == 0;
}
