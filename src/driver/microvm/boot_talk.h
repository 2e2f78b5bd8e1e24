/*
 * The few words a driver speaks with the agent of a VM: is it there, warm up, hold still.
 *
 * A blocking client over one connected socket (docs/agent-protocol.md). The full client, with
 * streams and reconnects, is the node's. What the agent says is foreign: bounded and timed.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

struct sp_boot_talk;

/* Takes over the fd. */
struct sp_boot_talk *sp_boot_talk_new(int fd);
void sp_boot_talk_free(
    struct sp_boot_talk *talk); /* closes the socket unless stolen; NULL is fine */

/* The socket, for someone who will begin with a HELLO of its own. */
int sp_boot_talk_steal_fd(struct sp_boot_talk *talk);

/* HELLO until HELLO_OK. again: the agent has been spoken with before, so that half a frame may be
 * under way: after 500 ms without an answer the stream is flushed with zeros (§2). During a boot it
 * is not: one HELLO waits for the agent. SP_ERROR_UNAVAILABLE: no answer in time;
 * SP_ERROR_UNSUPPORTED: no common version. */
bool sp_boot_talk_hello(struct sp_boot_talk *talk, const char *sandbox_id, bool again,
                        int64_t timeout_ms, GError **error);

/* Throw-away identity for the warm-up: the clock of now, fresh entropy, host name "template". */
bool sp_boot_talk_identity(struct sp_boot_talk *talk, int64_t timeout_ms, GError **error);

/* Runs a command as `user` (NULL: the default user) to its end and forgets it. output: the first
 * 4096 bytes of its stdout and stderr are appended; NULL: dropped. ret_exit_code may be NULL; −1:
 * it never ran. */
bool sp_boot_talk_run(struct sp_boot_talk *talk, const char *const *argv, const char *user,
                      int64_t timeout_ms, GString *output, int *ret_exit_code, GError **error);

/* Starts a command as `user` under a session id of the caller's and leaves it running. */
bool sp_boot_talk_start(struct sp_boot_talk *talk, const char *session, const char *const *argv,
                        const char *user, int64_t timeout_ms, GError **error);

/* The agent locks itself and holds still. */
bool sp_boot_talk_quiesce(struct sp_boot_talk *talk, int64_t timeout_ms, GError **error);

/* The user's processes stand still inside, and file systems are written back if sync … */
bool sp_boot_talk_hold(struct sp_boot_talk *talk, bool sync, int64_t timeout_ms, GError **error);
/* … and go on, with the clock of now. */
bool sp_boot_talk_release(struct sp_boot_talk *talk, int64_t timeout_ms, GError **error);
