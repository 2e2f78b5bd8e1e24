#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/container/container.h"
#include "os/mount.h"

#define FD_PATH 40

static void name_of(int fd, const char *below, char ret_option[FD_PATH])
{
    g_snprintf(ret_option, FD_PATH, "/proc/self/fd/%d%s", fd, below);
}

/* Mount points in the run directory, which exist while an overlay is made. */
static bool attach(int fd, const char *run_dir, const char *name, GError **error)
{
    g_autofree char *point = g_build_filename(run_dir, name, NULL);
    if (mkdir(point, 0700) < 0 && errno != EEXIST) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "mkdir %s", point);
        return false;
    }
    return sp_mount_attach(fd, point, error);
}

static void detach(const char *run_dir, const char *name)
{
    g_autofree char *point = g_build_filename(run_dir, name, NULL);
    sp_mount_detach(point, NULL);
    rmdir(point);
}

static int open_lower(const struct sp_container_root *root, GError **error)
{
    SP_CLEANUP(sp_close_fdp) int fd = sp_mount_clone(AT_FDCWD, root->image, false, error);
    if (fd < 0 ||
        !sp_mount_set(fd, SP_ATTR_IDMAP | SP_ATTR_RDONLY | SP_ATTR_NOSUID | SP_ATTR_NODEV,
                      root->idmap_fd, error) ||
        (root->attach && !attach(fd, root->run_dir, SP_CONTAINER_LOWER, error)))
        return -1;
    return sp_steal_fd(&fd);
}

/* The layer as a directory; where its ids are those of inside, as a mount that shows them as the
 * slot's. */
static int open_layer(const struct sp_container_root *root, GError **error)
{
    if (!root->map_layer) {
        int fd = open(root->layer, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", root->layer);
        return fd;
    }
    SP_CLEANUP(sp_close_fdp) int fd = sp_mount_clone(AT_FDCWD, root->layer, false, error);
    if (fd < 0 ||
        !sp_mount_set(fd, SP_ATTR_IDMAP | SP_ATTR_NOSUID | SP_ATTR_NODEV, root->idmap_fd, error) ||
        (root->attach && !attach(fd, root->run_dir, SP_CONTAINER_UPPER, error)))
        return -1;
    return sp_steal_fd(&fd);
}

int sp_container_root_new(const struct sp_container_root *root, GError **error)
{
    SP_CLEANUP(sp_close_fdp) int lower = open_lower(root, error);
    SP_CLEANUP(sp_close_fdp) int layer = lower < 0 ? -1 : open_layer(root, error);
    int fd = -1;
    if (layer >= 0) {
        char lower_name[FD_PATH], upper_name[FD_PATH], work_name[FD_PATH];
        name_of(lower, "", lower_name);
        name_of(layer, "/upper", upper_name);
        name_of(layer, "/work", work_name);
        /* redirect_dir: a directory of the image can be renamed. The sandbox cannot forge the
         * trusted.* attributes that this uses. index: would tie a layer to this very place of it,
         * and a saved one has another. */
        const char *const options[] = {"source",       "root",     "lowerdir", lower_name,
                                       "upperdir",     upper_name, "workdir",  work_name,
                                       "redirect_dir", "on",       "index",    "off",
                                       "xino",         "off",      NULL};
        fd = sp_mount_new("overlay", options, SP_ATTR_NOSUID | SP_ATTR_NODEV, error);
    }
    if (root->attach) { /* the overlay has copies of its own */
        detach(root->run_dir, SP_CONTAINER_LOWER);
        detach(root->run_dir, SP_CONTAINER_UPPER);
    }
    return fd;
}
