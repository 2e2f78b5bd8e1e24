/*
 * Loop devices (loop(4)) by ioctl, without losetup.
 *
 * Every device is set to clear itself: it goes when its last user (our descriptor, then the mount)
 * does, so that neither a failure nor a crash between two steps can leave one behind.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>

#define SP_LOOP_PATH_MAX 32 /* "/dev/loop" and a number, with the NUL */

/* Binds a loop device to the open file backing_fd (borrowed): the one that has the file already,
 * else a free one. Returns a descriptor of the device, which keeps it until the caller has mounted
 * it; -1 on failure. ret_path gets the device's name. Reads and writes go around the backing file's
 * page cache where the kernel can do that. Waits at most 10 s for a free device. Needs
 * CAP_SYS_ADMIN. */
int sp_loop_attach(int backing_fd, bool read_only, char ret_path[SP_LOOP_PATH_MAX], GError **error);

/* Path of the file that a loop device is bound to (from /sys/block); NULL when it is none or is not
 * bound. Free with g_free(). */
char *sp_loop_backing_file(const char *path);
