/*
 * A blocking QMP client over one connected socket.
 *
 * One command at a time; events that arrive meanwhile are kept (the newest 32) for
 * sp_qmp_wait_event(). Every call has a deadline. After a failure that is not QEMU's own answer the
 * connection is unusable: free it. Not thread-safe.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"

struct sp_qmp;

/* Takes over fd (also on failure), reads the greeting and negotiates. */
struct sp_qmp *sp_qmp_open(int fd, int64_t timeout_ms, GError **error);
/* The same over a new connection to the socket `name` in the directory dir. SP_ERROR_NOT_FOUND: no
 * socket there, or nobody listens on it. */
struct sp_qmp *sp_qmp_connect(const char *dir, const char *name, int64_t timeout_ms,
                              GError **error);
void sp_qmp_free(struct sp_qmp *qmp);

/* "7.2.22 Debian 1:7.2+…" from the greeting. Borrowed. */
const char *sp_qmp_version(const struct sp_qmp *qmp);

/* Runs a command; takes the reference to arguments (NULL: none). pass_fd >= 0 is sent along (getfd,
 * add-fd) and stays the caller's. Returns the value of "return", which the caller releases.
 * SP_ERROR_FAILED_PRECONDITION: QEMU refused; SP_ERROR_UNAVAILABLE: deadline or connection lost. */
json_t *sp_qmp_call(struct sp_qmp *qmp, const char *command, json_t *arguments, int pass_fd,
                    int64_t timeout_ms, GError **error);
/* The same when the value does not matter. */
bool sp_qmp_run(struct sp_qmp *qmp, const char *command, json_t *arguments, int pass_fd,
                int64_t timeout_ms, GError **error);

/* Waits for an event of this name (also one that arrived since the last call of this function) and
 * returns its data, which the caller releases; an empty object when it has none. */
json_t *sp_qmp_wait_event(struct sp_qmp *qmp, const char *event, int64_t timeout_ms,
                          GError **error);
