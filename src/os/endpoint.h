/*
 * Unix sockets with a name in a directory, whatever the length of the directory's path.
 *
 * sun_path holds 108 bytes (unix(7)); the directory is therefore opened and named through
 * /proc/self/fd.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

/* A listening stream socket (close-on-exec, backlog 8) at dir/name, mode 0600; what was there is
 * removed. -1 on failure. */
int sp_endpoint_listen(const char *dir, const char *name, GError **error);

/* A connected, non-blocking, close-on-exec stream socket; -1 on failure. SP_ERROR_NOT_FOUND: there
 * is no socket, or nobody listens on it; SP_ERROR_UNAVAILABLE: its backlog stayed full until the
 * deadline. */
int sp_endpoint_connect(const char *dir, const char *name, int64_t timeout_ms, GError **error);
/* The same for a socket's file that is open (O_PATH), by a socket of a process's network namespace:
 * to that one belongs the other end as well, which the kernel makes at connect(2). In the caller's
 * namespace where the process has no other. */
int sp_endpoint_connect_from(int pidfd, int file_fd, int64_t timeout_ms, GError **error);
