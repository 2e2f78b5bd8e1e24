/* Locks between processes and between threads of one: flock(2) on a file of its own. */
#pragma once

#include <glib.h>
#include <stdint.h>

/* Takes the lock, making the file if need be; closing the returned fd (close-on-exec) gives it
 * back, and so does the end of the process. -1: SP_ERROR_UNAVAILABLE when it is still held after
 * timeout_ms. */
int sp_file_lock(const char *path, int64_t timeout_ms, GError **error);
