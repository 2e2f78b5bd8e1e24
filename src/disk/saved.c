#include "disk/saved.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "disk/btrfs.h"
#include "disk/saved_private.h"
#include "disk/tree.h"
#include "os/cleanup.h"

/* Names in tmp/: what is being made, and what is being removed. */
#define NEW_PREFIX "saved-new-"
#define OLD_PREFIX "saved-old-"
#define RESERVATION "reservation"
/* For the file system's own needs beside the data. */
#define RECLAIM_MS 3000
#define MARGIN_BYTES (INT64_C(16) << 20)

struct sp_saved_staging {
    const struct sp_volume *volume;
    char *name, *work; /* work: its name in tmp/ */
    char *dir;
    int tmp_fd, dir_fd;
    bool published;
};

char *sp_saved_path(const struct sp_volume *volume, const char *name)
{
    return g_build_filename(sp_volume_dir(volume), "saved", name, NULL);
}

bool sp_saved_exists(const struct sp_volume *volume, const char *name)
{
    g_autofree char *dir = sp_saved_path(volume, name);
    g_autofree char *manifest = g_build_filename(dir, SP_SAVED_MANIFEST, NULL);
    return access(manifest, F_OK) == 0;
}

bool sp_saved_is_gone(const struct sp_volume *volume, const char *name)
{
    g_autofree char *dir = sp_saved_path(volume, name);
    g_autofree char *manifest = g_build_filename(dir, SP_SAVED_MANIFEST, NULL);
    return access(manifest, F_OK) < 0 && errno == ENOENT;
}

int sp_saved_open_folder(const struct sp_volume *volume, const char *folder, GError **error)
{
    g_autofree char *path = g_build_filename(sp_volume_dir(volume), folder, NULL);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", path);
    return fd;
}

bool sp_saved_check_name(const char *name, GError **error)
{
    size_t len = strlen(name);
    size_t good = strspn(name, G_CSET_a_2_z G_CSET_A_2_Z G_CSET_DIGITS "_-");
    if (len > 0 && len == good && len < SP_ID_MAX)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "not a name of a saved form: %s", name);
    return false;
}

static bool fail(GError **error, const char *what, const char *name)
{
    enum sp_error_code code =
        errno == ENOSPC || errno == EDQUOT ? SP_ERROR_UNAVAILABLE : SP_ERROR_INTERNAL;
    sp_error_set_errno(error, code, errno, "%s %s", what, name);
    return false;
}

/* --- removal: out of sight in one step, then piece by piece */

/* Subvolumes in the directory go as a whole. */
static int remove_subvolumes(const struct sp_volume *volume, int dir_fd)
{
    int copy = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy >= 0 ? fdopendir(copy) : NULL;
    int result = dir ? 0 : -1;
    for (struct dirent *entry; result == 0 && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.' || (entry->d_type != DT_DIR && entry->d_type != DT_UNKNOWN))
            continue;
        uint64_t group = sp_btrfs_subvolume_id(dir_fd, entry->d_name);
        if (group == 0)
            continue;
        result = sp_btrfs_subvolume_destroy(dir_fd, entry->d_name);
        if (result == 0)
            sp_volume_drop_group(volume, group);
    }
    int saved = errno;
    if (dir)
        closedir(dir);
    else if (copy >= 0)
        close(copy);
    errno = saved;
    return result;
}

static int remove_work(const struct sp_volume *volume, int tmp_fd, const char *work)
{
    SP_CLEANUP(sp_close_fdp)
    int dir_fd = openat(tmp_fd, work, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir_fd < 0)
        return errno == ENOENT ? 0 : -1;
    if (sp_volume_kind(volume) == SP_VOLUME_BTRFS && remove_subvolumes(volume, dir_fd) < 0)
        return -1;
    return sp_tree_remove_at(tmp_fd, work);
}

/* In place: on a full volume a rename may have no room for its own records, where a removal has. The
 * manifest goes first, so that what a crash leaves is not taken for a form; the next try to remove or
 * replace it ends it. */
static int remove_in_place(const struct sp_volume *volume, int from_fd, const char *name)
{
    SP_CLEANUP(sp_close_fdp)
    int dir_fd = openat(from_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir_fd < 0 || (unlinkat(dir_fd, SP_SAVED_MANIFEST, 0) < 0 && errno != ENOENT))
        return -1;
    return remove_work(volume, from_fd, name);
}

/* Under a name that nobody waits for, then away. What cannot be removed is for sp_saved_clean(). */
static bool discard(const struct sp_volume *volume, int from_fd, const char *name, int tmp_fd,
                    GError **error)
{
    char id[SP_ID_MAX];
    sp_id_new("old", id);
    g_autofree char *work = g_strconcat(OLD_PREFIX, id, NULL);
    if (renameat(from_fd, name, tmp_fd, work) < 0) {
        if (errno == ENOENT)
            return true;
        return ((errno == ENOSPC || errno == EDQUOT) &&
                remove_in_place(volume, from_fd, name) == 0) ||
               fail(error, "remove the saved form", name);
    }
    return remove_work(volume, tmp_fd, work) == 0 || fail(error, "remove the saved form", name);
}

bool sp_saved_remove(const struct sp_volume *volume, const char *name, GError **error)
{
    if (!sp_saved_check_name(name, error))
        return false;
    SP_CLEANUP(sp_close_fdp) int saved_fd = sp_saved_open_folder(volume, "saved", error);
    if (saved_fd < 0)
        return false;
    SP_CLEANUP(sp_close_fdp) int tmp_fd = sp_saved_open_folder(volume, "tmp", error);
    return tmp_fd >= 0 && discard(volume, saved_fd, name, tmp_fd, error);
}

void sp_saved_clean(const struct sp_volume *volume)
{
    SP_CLEANUP(sp_close_fdp) int tmp_fd = sp_saved_open_folder(volume, "tmp", NULL);
    g_autofree char *path = g_build_filename(sp_volume_dir(volume), "tmp", NULL);
    g_autoptr(GDir) dir = tmp_fd >= 0 ? g_dir_open(path, 0, NULL) : NULL;
    for (const char *name; dir && (name = g_dir_read_name(dir));) {
        if (g_str_has_prefix(name, NEW_PREFIX) || g_str_has_prefix(name, OLD_PREFIX))
            remove_work(volume, tmp_fd, name);
    }
}

/* --- making */

void sp_saved_staging_free(struct sp_saved_staging *staging)
{
    if (!staging)
        return;
    if (staging->dir_fd >= 0)
        close(staging->dir_fd);
    if (!staging->published) /* its name in tmp/ is nobody's but ours: no other is needed */
        remove_work(staging->volume, staging->tmp_fd, staging->work);
    close(staging->tmp_fd);
    g_free(staging->name);
    g_free(staging->work);
    g_free(staging->dir);
    g_free(staging);
}

static bool too_full(const struct sp_volume *volume, int64_t wanted, GError **error)
{
    g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE,
                "saving needs %" G_GINT64_FORMAT " MiB of disk, %" G_GUINT64_FORMAT " MiB are free",
                (wanted >> 20) + 1, sp_volume_free_bytes(volume) >> 20);
    return false;
}

static bool reserve(struct sp_saved_staging *staging, int64_t bytes, GError **error)
{
    int64_t wanted = bytes + MARGIN_BYTES;
    if (sp_volume_free_bytes(staging->volume) < (uint64_t)wanted)
        sp_volume_reclaim(staging->volume, RECLAIM_MS,
                          NULL); /* what was just deleted comes back late */
    if (sp_volume_free_bytes(staging->volume) < (uint64_t)wanted)
        return too_full(staging->volume, wanted, error);
    SP_CLEANUP(sp_close_fdp)
    int fd = openat(staging->dir_fd, RESERVATION, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return fail(error, "make a reservation for", staging->name);
    /* Where this cannot be done (EOPNOTSUPP) the free bytes must do. */
    bool full = fallocate(fd, 0, 0, wanted) < 0 && errno != EOPNOTSUPP;
    int failure = errno;
    unlinkat(staging->dir_fd, RESERVATION, 0);
    if (!full)
        return true;
    if (failure == ENOSPC || failure == EDQUOT)
        return too_full(staging->volume, wanted, error);
    errno = failure;
    return fail(error, "reserve space for", staging->name);
}

static bool make_dir(struct sp_saved_staging *staging, GError **error)
{
    if (mkdirat(staging->tmp_fd, staging->work, 0700) < 0) {
        sp_error_set_errno(error, errno == EEXIST ? SP_ERROR_CONFLICT : SP_ERROR_UNAVAILABLE, errno,
                           "saved form %s: make its directory", staging->name);
        /* Not ours to remove. */
        staging->published = errno == EEXIST;
        return false;
    }
    staging->dir_fd =
        openat(staging->tmp_fd, staging->work, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return staging->dir_fd >= 0 || fail(error, "open the new form", staging->name);
}

struct sp_saved_staging *sp_saved_stage(const struct sp_volume *volume, const char *name,
                                        int64_t reserve_bytes, GError **error)
{
    if (!sp_saved_check_name(name, error))
        return NULL;
    int tmp_fd = sp_saved_open_folder(volume, "tmp", error);
    if (tmp_fd < 0)
        return NULL;
    struct sp_saved_staging *staging = g_new0(struct sp_saved_staging, 1);
    staging->volume = volume;
    staging->name = g_strdup(name);
    staging->work = g_strconcat(NEW_PREFIX, name, NULL);
    staging->dir = g_build_filename(sp_volume_dir(volume), "tmp", staging->work, NULL);
    staging->tmp_fd = tmp_fd;
    staging->dir_fd = -1;
    if (!make_dir(staging, error) || !reserve(staging, reserve_bytes, error))
        g_clear_pointer(&staging, sp_saved_staging_free);
    return staging;
}

const char *sp_saved_staging_dir(const struct sp_saved_staging *staging)
{
    return staging->dir;
}

/* --- committing */

static bool sync_fd(int fd, const char *name, GError **error)
{
    return fsync(fd) == 0 || fail(error, "sync", name);
}

/* Every file by itself. Of a tree (a subvolume, a directory) that would be long: then the whole
 * volume. */
static bool sync_content(const struct sp_saved_staging *staging, GError **error)
{
    g_autoptr(GDir) dir = g_dir_open(staging->dir, 0, error);
    bool trees = false;
    for (const char *name; dir && (name = g_dir_read_name(dir));) {
        SP_CLEANUP(sp_close_fdp)
        int fd = openat(staging->dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        struct stat st;
        if (fd < 0 || fstat(fd, &st) < 0)
            return fail(error, "open", name);
        trees = trees || S_ISDIR(st.st_mode);
        if (S_ISREG(st.st_mode) && !sync_fd(fd, name, error))
            return false;
    }
    return dir && (!trees || syncfs(staging->dir_fd) == 0 || fail(error, "sync", staging->name));
}

static bool write_manifest(const struct sp_saved_staging *staging,
                           const struct sp_saved_manifest *manifest, GError **error)
{
    size_t len;
    g_autofree char *text = sp_saved_manifest_text(manifest, &len);
    if (len > SP_SAVED_MANIFEST_MAX) {
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "the manifest is too long");
        return false;
    }
    SP_CLEANUP(sp_close_fdp)
    int fd =
        openat(staging->dir_fd, SP_SAVED_MANIFEST, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, text, len) != (ssize_t)len)
        return fail(error, "write the manifest of", staging->name);
    return !manifest->durable || sync_fd(fd, SP_SAVED_MANIFEST, error);
}

/* The step that makes it exist. After an exchange the old form has the staging's name. */
static bool appear(struct sp_saved_staging *staging, int saved_fd, bool replace, GError **error)
{
    unsigned flags = RENAME_NOREPLACE;
    if (replace && faccessat(saved_fd, staging->name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        flags = RENAME_EXCHANGE;
    if (renameat2(staging->tmp_fd, staging->work, saved_fd, staging->name, flags) < 0) {
        if (errno == EEXIST) {
            g_set_error(error, SP_ERROR, SP_ERROR_CONFLICT, "saved form %s exists", staging->name);
            return false;
        }
        return fail(error, "publish the saved form", staging->name);
    }
    staging->published = true;
    if (flags == RENAME_EXCHANGE)
        discard(staging->volume, staging->tmp_fd, staging->work, staging->tmp_fd, NULL);
    return true;
}

bool sp_saved_publish(struct sp_saved_staging *staging, const struct sp_saved_manifest *manifest,
                      bool replace, GError **error)
{
    SP_CLEANUP(sp_close_fdp)
    int saved_fd = sp_saved_open_folder(staging->volume, "saved", error);
    if (saved_fd < 0)
        return false;
    bool durable = manifest->durable;
    return (!durable || sync_content(staging, error)) && write_manifest(staging, manifest, error) &&
           (!durable || sync_fd(staging->dir_fd, staging->name, error)) &&
           appear(staging, saved_fd, replace, error) &&
           (!durable || sync_fd(saved_fd, "saved", error));
}

bool sp_saved_commit(struct sp_saved_staging *staging, const struct sp_saved_manifest *manifest,
                     GError **error)
{
    return sp_saved_publish(staging, manifest, false, error);
}
