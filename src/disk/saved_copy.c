/* Saved forms that are there: reading, listing, copying. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "disk/btrfs.h"
#include "disk/program.h"
#include "disk/saved_private.h"
#include "os/cleanup.h"

#define COPY_TREE_MS 120000

static bool damaged(GError **error, const char *dir, const char *why)
{
    g_autofree char *name = g_path_get_basename(dir);
    g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION, "saved form %s is damaged: %s", name,
                why);
    return false;
}

static bool read_manifest(const char *dir, struct sp_saved_manifest *ret, GError **error)
{
    g_autofree char *path = g_build_filename(dir, SP_SAVED_MANIFEST, NULL);
    SP_CLEANUP(sp_close_fdp)
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        sp_error_set_errno(error, errno == ENOENT ? SP_ERROR_NOT_FOUND : SP_ERROR_INTERNAL, errno,
                           "saved form %s", dir);
        return false;
    }
    g_autofree char *text = g_malloc(SP_SAVED_MANIFEST_MAX + 1);
    ssize_t n = read(fd, text, SP_SAVED_MANIFEST_MAX + 1);
    if (n < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "read %s", path);
        return false;
    }
    g_autofree char *name = g_path_get_basename(dir);
    if (sp_saved_manifest_parse(text, (size_t)n, ret, error))
        return true;
    g_prefix_error(error, "saved form %s: ", name);
    return false;
}

/* That a form made for this boot only is not of another one; that the files are there in their
 * sizes. What is in them is for the tier to verify: it reads them anyway. */
static bool check(const char *dir, const struct sp_saved_manifest *manifest, GError **error)
{
    g_autofree char *boot_id = NULL;
    if (!g_file_get_contents("/proc/sys/kernel/random/boot_id", &boot_id, NULL, error))
        return false;
    if (!manifest->durable && strcmp(g_strchomp(boot_id), manifest->boot_id) != 0)
        return damaged(error, dir, "it was made for another boot of this host only");
    for (guint i = 0; manifest->files && i < manifest->files->len; i++) {
        const struct sp_saved_file *file = &g_array_index(manifest->files, struct sp_saved_file, i);
        g_autofree char *path = g_build_filename(dir, file->name, NULL);
        struct stat st;
        if (lstat(path, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size != file->size_bytes)
            return damaged(error, dir, file->name);
    }
    return true;
}

bool sp_saved_load(const char *dir, struct sp_saved_manifest *ret, GError **error)
{
    struct sp_saved_manifest manifest;
    if (!read_manifest(dir, &manifest, error))
        return false;
    if (!check(dir, &manifest, error)) {
        sp_saved_manifest_clear(&manifest);
        return false;
    }
    *ret = manifest;
    return true;
}

char **sp_saved_list(const struct sp_volume *volume)
{
    g_autofree char *path = g_build_filename(sp_volume_dir(volume), "saved", NULL);
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    GPtrArray *names = g_ptr_array_new();
    for (const char *name; dir && (name = g_dir_read_name(dir));) {
        if (sp_saved_exists(volume, name))
            g_ptr_array_add(names, g_strdup(name));
    }
    g_ptr_array_add(names, NULL);
    return (char **)g_ptr_array_free(names, FALSE);
}

/* --- copies */

static bool copy_tree(const char *from, const char *to, GError **error)
{
    const char *argv[] = {"cp", "-a", "--reflink=auto", from, to, NULL};
    struct sp_program program = {.argv = argv, .timeout_ms = COPY_TREE_MS};
    return sp_program_run(&program, error);
}

static bool copy_entry(int from_fd, const char *from, int to_fd, const char *to, const char *name,
                       GError **error)
{
    struct stat st;
    if (fstatat(from_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "look at %s/%s", from, name);
        return false;
    }
    if (!S_ISDIR(st.st_mode)) {
        if (linkat(from_fd, name, to_fd, name, 0) == 0)
            return true;
        sp_error_set_errno(error, errno == ENOSPC ? SP_ERROR_UNAVAILABLE : SP_ERROR_INTERNAL, errno,
                           "link %s/%s", from, name);
        return false;
    }
    if (sp_btrfs_is(from_fd) && sp_btrfs_subvolume_id(from_fd, name) != 0) {
        SP_CLEANUP(sp_close_fdp)
        int source = openat(from_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (source >= 0 && sp_btrfs_snapshot(to_fd, name, source, true) == 0)
            return true;
        sp_error_set_errno(error, errno == ENOSPC ? SP_ERROR_UNAVAILABLE : SP_ERROR_INTERNAL, errno,
                           "snapshot of %s/%s", from, name);
        return false;
    }
    g_autofree char *source = g_build_filename(from, name, NULL);
    g_autofree char *target = g_build_filename(to, name, NULL);
    return copy_tree(source, target, error);
}

static bool copy_content(const char *from, const char *to, GError **error)
{
    g_autoptr(GDir) dir = g_dir_open(from, 0, error);
    SP_CLEANUP(sp_close_fdp) int from_fd = open(from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    SP_CLEANUP(sp_close_fdp) int to_fd = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!dir)
        return false;
    if (from_fd < 0 || to_fd < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", from_fd < 0 ? from : to);
        return false;
    }
    for (const char *name; (name = g_dir_read_name(dir));) {
        if (strcmp(name, SP_SAVED_MANIFEST) != 0 &&
            !copy_entry(from_fd, from, to_fd, to, name, error))
            return false;
    }
    return true;
}

bool sp_saved_copy(const struct sp_volume *volume, const char *from, const char *to,
                   const char *sandbox_id, bool durable, GError **error)
{
    if (!sp_saved_check_name(from, error) || !sp_saved_check_name(to, error))
        return false;
    g_autofree char *source = sp_saved_path(volume, from);
    struct sp_saved_manifest manifest;
    if (!sp_saved_load(source, &manifest, error))
        return false;
    struct sp_saved_staging *staging = sp_saved_stage(volume, to, 0, error);
    bool ok = staging && copy_content(source, sp_saved_staging_dir(staging), error);
    if (ok) {
        if (sandbox_id) {
            g_free(manifest.sandbox_id);
            manifest.sandbox_id = g_strdup(sandbox_id);
        }
        manifest.durable = durable;
        g_clear_pointer(&manifest.boot_id, g_free);
        ok = sp_saved_publish(staging, &manifest, true, error);
    }
    sp_saved_staging_free(staging);
    sp_saved_manifest_clear(&manifest);
    return ok;
}
