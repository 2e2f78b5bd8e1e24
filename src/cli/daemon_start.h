/* What `space server` and `space worker` do before they begin: secrets, supervisor, privileges. */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/json.h"

/* Reads the secrets (a JSON object of at most 64 KiB) from a descriptor up to its end, and closes
 * it. */
json_t *sp_daemon_read_secrets(int fd, GError **error);

/* Makes every inherited descriptor but the standard ones close-on-exec, so that no program that the
 * daemon starts gets one. */
void sp_daemon_keep_descriptors(void);

/* Watches the supervisor: SIGTERM to ourselves when the pipe fd is at its end. Starts a thread that
 * has all signals blocked. */
void sp_daemon_watch_parent(int fd);

/* Becomes an unprivileged uid and gid (the same number) for good: no groups, no capabilities, no
 * new privileges. Before threads exist. */
bool sp_daemon_drop_privileges(uid_t uid, GError **error);

/* Path by which `uid` can reach dir, where it may work: dir itself, or when a directory above is
 * closed to it, a bind mount in a mount namespace of our own below a private /tmp. Free with
 * g_free(). Call before dropping privileges and before threads exist. */
char *sp_daemon_reachable(const char *dir, uid_t uid, GError **error);
