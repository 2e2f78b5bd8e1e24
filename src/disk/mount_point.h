/* Mounts over loop devices that SPACE makes and finds again. */
#pragma once

#include <glib.h>
#include <stdbool.h>

/* Unmounts what is at path and waits, at most timeout_ms, until the loop device under it, if any,
 * is clear: another mount namespace that has a copy of the mount can keep it for longer, which is
 * not an error. SP_ERROR_FAILED_PRECONDITION: in use in this namespace. True when nothing is
 * mounted there. */
bool sp_mount_point_remove(const char *path, int timeout_ms, GError **error);
