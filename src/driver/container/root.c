#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/container/container.h"
#include "os/mount.h"

#define FD_PATH 40

/* The layer as an fd and a name that says nothing about the host. */
static int open_dir(const char *parent, const char *name, char ret_option[FD_PATH], GError **error)
{
    g_autofree char *path = g_build_filename(parent, name, NULL);
    int fd = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", path);
    else
        g_snprintf(ret_option, FD_PATH, "/proc/self/fd/%d", fd);
    return fd;
}

static bool attach_lower(int fd, const char *point, GError **error)
{
    if (mkdir(point, 0700) < 0 && errno != EEXIST) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "mkdir %s", point);
        return false;
    }
    return sp_mount_attach(fd, point, error);
}

int sp_container_root_new(const struct sp_container_root *root, GError **error)
{
    g_autofree char *point = g_build_filename(root->run_dir, SP_CONTAINER_LOWER, NULL);
    char lower_name[FD_PATH], upper_name[FD_PATH], work_name[FD_PATH];
    SP_CLEANUP(sp_close_fdp) int lower = sp_mount_clone(AT_FDCWD, root->image, false, error);
    if (lower < 0 ||
        !sp_mount_set(lower, SP_ATTR_IDMAP | SP_ATTR_RDONLY | SP_ATTR_NOSUID | SP_ATTR_NODEV,
                      root->idmap_fd, error))
        return -1;
    g_snprintf(lower_name, sizeof lower_name, "/proc/self/fd/%d", lower);
    SP_CLEANUP(sp_close_fdp) int upper = open_dir(root->layer, "upper", upper_name, error);
    SP_CLEANUP(sp_close_fdp)
    int work = upper < 0 ? -1 : open_dir(root->layer, "work", work_name, error);
    if (work < 0 || (root->attach && !attach_lower(lower, point, error)))
        return -1;
    /* redirect_dir: a directory of the image can be renamed. The sandbox cannot forge the trusted.*
     * attributes that this uses. */
    const char *const options[] = {"source",   "root",    "lowerdir", lower_name,     "upperdir",
                                   upper_name, "workdir", work_name,  "redirect_dir", "on",
                                   "xino",     "off",     NULL};
    int fd = sp_mount_new("overlay", options, SP_ATTR_NOSUID | SP_ATTR_NODEV, error);
    if (root->attach) { /* the overlay has copies of its own */
        sp_mount_detach(point, NULL);
        rmdir(point);
    }
    return fd;
}
