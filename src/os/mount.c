#include "os/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"

enum { CONFIG_FLAG = 0, CONFIG_STRING = 1, CONFIG_CREATE = 6 }; /* fsconfig(2) */

/* Reads one line of the kernel's message log of a file system context ("e overlay: …"). */
static void explain(int fs, int err, const char *type, const char *what, GError **error)
{
    char text[256];
    ssize_t n = read(fs, text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    g_strchomp(text);
    sp_error_set_errno(error, SP_ERROR_INTERNAL, err, "mount %s: %s%s%s", type, what,
                       n > 0 ? ": " : "", n > 2 ? text + 2 : "");
}

int sp_mount_new(const char *type, const char *const *options, unsigned attr, GError **error)
{
    int fs = (int)syscall(SYS_fsopen, type, 1 /* FSOPEN_CLOEXEC */);
    if (fs < 0) {
        sp_error_set_errno(error, SP_ERROR_UNSUPPORTED, errno, "fsopen %s", type);
        return -1;
    }
    int ret = -1;
    for (size_t i = 0; options && options[i]; i += 2) {
        const char *value = options[i + 1];
        if (syscall(SYS_fsconfig, fs, value ? CONFIG_STRING : CONFIG_FLAG, options[i], value, 0) <
            0) {
            explain(fs, errno, type, options[i], error);
            goto out;
        }
    }
    if (syscall(SYS_fsconfig, fs, CONFIG_CREATE, NULL, NULL, 0) < 0) {
        explain(fs, errno, type, "create", error);
        goto out;
    }
    ret = (int)syscall(SYS_fsmount, fs, 1 /* FSMOUNT_CLOEXEC */, attr);
    if (ret < 0)
        explain(fs, errno, type, "fsmount", error);
out:
    close(fs);
    return ret;
}

bool sp_mount_supported(const char *type)
{
    int fs = (int)syscall(SYS_fsopen, type, 1 /* FSOPEN_CLOEXEC */);
    if (fs >= 0)
        close(fs);
    return fs >= 0;
}

int sp_mount_clone(int dirfd, const char *path, bool recursive, GError **error)
{
    unsigned flags = SP_OPEN_TREE_CLONE | O_CLOEXEC | (recursive ? 0x8000u /* AT_RECURSIVE */ : 0) |
                     (*path ? 0 : AT_EMPTY_PATH);
    int fd = (int)syscall(SYS_open_tree, dirfd, path, flags);
    if (fd < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open_tree \"%s\"", path);
        return -1;
    }
    struct sp_mount_attr a = {.propagation = MS_PRIVATE};
    unsigned set = AT_EMPTY_PATH | (recursive ? 0x8000u : 0);
    if (syscall(SYS_mount_setattr, fd, "", set, &a, sizeof a) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "mount_setattr \"%s\"", path);
        close(fd);
        return -1;
    }
    return fd;
}

bool sp_mount_set(int mount_fd, unsigned attr, int userns_fd, GError **error)
{
    struct sp_mount_attr a = {.attr_set = attr,
                              .userns_fd = attr & SP_ATTR_IDMAP ? (uint64_t)userns_fd : 0};
    if (syscall(SYS_mount_setattr, mount_fd, "", AT_EMPTY_PATH, &a, sizeof a) == 0)
        return true;
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "mount_setattr 0x%x", attr);
    return false;
}

bool sp_mount_attach(int mount_fd, const char *path, GError **error)
{
    if (syscall(SYS_move_mount, mount_fd, "", AT_FDCWD, path, SP_MOVE_F_EMPTY) == 0)
        return true;
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "move_mount to %s", path);
    return false;
}

bool sp_mount_detach(const char *path, GError **error)
{
    if (umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) == 0 || errno == ENOENT || errno == EINVAL)
        return true;
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "unmount %s", path);
    return false;
}

bool sp_mount_is_point(const char *path)
{
    struct statx s;
    return statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_TYPE, &s) == 0 &&
           (s.stx_attributes & STATX_ATTR_MOUNT_ROOT);
}
