/*
 * The mount API by file descriptors: fsopen(2), fsconfig(2), fsmount(2), open_tree(2),
 * move_mount(2), mount_setattr(2). Linux 5.12 and newer; called by number, since Debian 12's libc
 * has wrappers but not all constants.
 *
 * A "detached mount" is an fd of a mount that is in no tree: it goes away with its last fd, leaves
 * nothing behind after a crash, and can be passed to another process.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* <linux/mount.h>; repeated, since it cannot be included beside <sys/mount.h> everywhere. */
#define SP_ATTR_RDONLY 0x1u
#define SP_ATTR_NOSUID 0x2u
#define SP_ATTR_NODEV 0x4u
#define SP_ATTR_NOEXEC 0x8u
#define SP_ATTR_IDMAP 0x100000u
#define SP_OPEN_TREE_CLONE 1u
#define SP_MOVE_F_EMPTY 0x4u
#define SP_MOVE_T_EMPTY 0x40u

struct sp_mount_attr { /* struct mount_attr of mount_setattr(2) */
    uint64_t attr_set, attr_clr, propagation, userns_fd;
};

/* A new instance of a file system as a detached mount. options: NULL-terminated "key", "value"
 * pairs, a NULL value is a flag. attr: SP_ATTR_*. The kernel's own words about a refused option
 * are in the error. -1 on failure. */
int sp_mount_new(const char *type, const char *const *options, unsigned attr, GError **error);
/* Whether the kernel has this file system (its module may be loaded by the question). */
bool sp_mount_supported(const char *type);
/* A detached copy of the mount at dirfd/path (only that mount, or all below with recursive). path
 * "" means dirfd itself. It is private: the copy of a shared mount (on most hosts all are) would be
 * its peer, and what is mounted on one, in any sandbox, would appear on all. A copy of a detached
 * mount needs Linux 6.15. -1 on failure. */
int sp_mount_clone(int dirfd, const char *path, bool recursive, GError **error);
/* Adds attributes to a mount; with SP_ATTR_IDMAP its ids are seen through userns_fd. */
bool sp_mount_set(int mount_fd, unsigned attr, int userns_fd, GError **error);
/* Puts a detached mount onto an existing directory or file. */
bool sp_mount_attach(int mount_fd, const char *path, GError **error);
/* Detaches whatever is mounted at path; true when nothing is. Does not follow a final link. */
bool sp_mount_detach(const char *path, GError **error);
/* Whether something is mounted exactly at path (statx(2), STATX_ATTR_MOUNT_ROOT); a final link is
 * not followed. False also when there is no such path. */
bool sp_mount_is_point(const char *path);
