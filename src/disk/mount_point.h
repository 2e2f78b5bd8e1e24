/* Mount points that SPACE makes and finds again. */
#pragma once

#include <glib.h>
#include <stdbool.h>

/* Whether something is mounted exactly at path (statx(2), STATX_ATTR_MOUNT_ROOT); the last
 * component is not followed when it is a link. False also when there is no such path. */
bool sp_mount_point_is(const char *path);

/* Unmounts what is at path and waits, at most timeout_ms, until the loop device under it, if any, is
 * clear: another mount namespace that has a copy of the mount can keep it for longer, which is not an
 * error. SP_ERROR_FAILED_PRECONDITION: in use in this namespace. True when nothing is mounted there. */
bool sp_mount_point_remove(const char *path, int timeout_ms, GError **error);
