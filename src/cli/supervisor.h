/*
 * Keeps the daemons of one box running: starts them, restarts with back-off what has died, and
 * stops them.
 *
 * Single-threaded, because it forks. A daemon gets no secrets in argv or environment: descriptor
 * SP_DAEMON_SECRETS_FD is a pipe with its secrets (JSON), SP_DAEMON_PARENT_FD a pipe whose other
 * end only the supervisor has: at its end of file the daemon stops, so that none outlives a killed
 * `space up`.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "cli/state_dir.h"

#define SP_DAEMON_SECRETS_FD 3
#define SP_DAEMON_PARENT_FD 4

struct sp_supervisor;

/* log_to_stderr: daemons log to our stderr instead of DIR/log/<name>.log. state is borrowed. */
struct sp_supervisor *sp_supervisor_new(const struct sp_state_dir *state, bool log_to_stderr);
void sp_supervisor_free(struct sp_supervisor *supervisor);

/* Names a daemon: `space <name> <arguments…>`; secrets is its own reference. Started by the next
 * turn. */
void sp_supervisor_add(struct sp_supervisor *supervisor, const char *name, char **arguments,
                       json_t *secrets);

enum sp_supervisor_event {
    SP_SUPERVISOR_TIME,  /* the time was up */
    SP_SUPERVISOR_STOP,  /* SIGTERM, SIGINT or SIGHUP came */
    SP_SUPERVISOR_STUCK, /* a daemon died SP_SUPERVISOR_MAX_DEATHS times without ever being ready */
};
#define SP_SUPERVISOR_MAX_DEATHS 3

/* Does what is due (start, reap, rotate logs) until a signal comes or the time is up. */
enum sp_supervisor_event sp_supervisor_turn(struct sp_supervisor *supervisor, int timeout_ms);
/* From now on deaths are met by restarts alone, however often. */
void sp_supervisor_all_ready(struct sp_supervisor *supervisor);
/* What the daemon that got stuck said last; NULL: none is. Free with g_free(). */
char *sp_supervisor_last_words(const struct sp_supervisor *supervisor);
/* SIGTERM to all, waits at most timeout_ms, SIGKILL to the rest. */
void sp_supervisor_stop(struct sp_supervisor *supervisor, int timeout_ms);
