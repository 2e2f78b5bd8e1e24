/* Messages with file descriptors over SOCK_SEQPACKET (unix(7), SCM_RIGHTS). */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define SP_FDPASS_MAX 64 /* below the kernel's SCM_MAX_FD (253) */

/* Sends one message. The caller keeps its fds. Blocks at most timeout_ms. */
bool sp_fdpass_send(int socket_fd, const void *bytes, size_t len, const int *fds, unsigned n_fds,
                    int timeout_ms, GError **error);
/* Receives one message of at most size bytes; the fds (close-on-exec) become the caller's. *ret_len
 * is 0 at the end of the stream. A message that does not fit, or has too many fds, is an error and
 * nothing of it is kept. timeout_ms < 0 waits for ever. */
bool sp_fdpass_receive(int socket_fd, void *bytes, size_t size, size_t *ret_len,
                       int ret_fds[SP_FDPASS_MAX], unsigned *ret_n_fds, int timeout_ms,
                       GError **error);
