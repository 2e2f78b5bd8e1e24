/*
 * The state directory as `space up` makes it:
 *
 *     DIR              0711  ours
 *     DIR/up.lock      0600  record lock (fcntl(2)) of the `space up` that runs
 *     DIR/node.key     0600  the key between server and worker
 *     DIR/client.conf  0600  URL and API key for the CLI: the only place where the key stands
 *     DIR/database     0600  URL of PostgreSQL, when the server's database is one
 *     DIR/server       0700  the server's own (its database), owned by its uid
 *     DIR/log          0700  server.log, worker.log and their .1
 *     DIR/server.lock, DIR/worker.lock   held (flock(2)) by the daemon as long as it lives
 *
 * The rest (data, run, …) is the worker's.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/ids.h"

struct sp_state_dir {
    char *path; /* absolute */
    int lock_fd;
    uid_t server_uid; /* (uid_t)-1: the server runs as we do (not root) */
    char node_key[SP_SECRET_MAX];
    char api_key[SP_SECRET_MAX];
};

/* Makes what is missing and takes the lock. SP_ERROR_FAILED_PRECONDITION when another `space up`
 * has it (the message names its pid). The caller must not fork afterwards and go on in the child:
 * the lock is the process's. */
bool sp_state_dir_open(const char *path, struct sp_state_dir *ret, GError **error);
void sp_state_dir_close(struct sp_state_dir *state);

/* A path below it; free with g_free(). */
char *sp_state_dir_file(const struct sp_state_dir *state, const char *name);
/* Takes DIR/<daemon>.lock, waiting up to timeout_ms for an earlier daemon to end. The descriptor
 * (close-on-exec) holds it; -1 on failure. */
int sp_state_dir_lock_daemon(const struct sp_state_dir *state, const char *daemon, int timeout_ms,
                             GError **error);

/* pid of the `space up` that holds the lock of a state directory; 0 when none does. */
pid_t sp_state_dir_holder(const char *path);
