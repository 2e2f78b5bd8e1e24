/*
 * The command sessions of this node. One struct with one lock; lock order as in table.h.
 */
#pragma once

#include "node/node.h"
#include "node/session.h"

struct sp_sessions;

struct sp_sessions *sp_sessions_new(struct sp_node *node);
void sp_sessions_free(struct sp_sessions *sessions);

/* A session with its spec, asked of the server if need be. A reference; SP_ERROR_NOT_FOUND. */
struct sp_session *sp_sessions_get(struct sp_sessions *sessions, const char *id, GError **error);
/* The same for the bearer of an attachment token; SP_ERROR_UNAUTHENTICATED when it is not valid. */
struct sp_session *sp_sessions_authorize(struct sp_sessions *sessions, const char *id,
                                         const char *token, GError **error);
/* A session that exists by the server's request (exec): body names it. A reference. */
struct sp_session *sp_sessions_add(struct sp_sessions *sessions, const char *sandbox_id,
                                   json_t *body, GError **error);
/* The session of a process; NULL when it is not known here. A reference. */
struct sp_session *sp_sessions_by_process(struct sp_sessions *sessions, const char *sandbox_id,
                                          const char *process_id);

/* --- the life of a session */
struct sp_session_view {
    enum sp_session_state state;
    int32_t pid;
};
void sp_sessions_view(struct sp_sessions *sessions, struct sp_session *session,
                      struct sp_session_view *ret);
/* {state, pid, exit?, error?} */
json_t *sp_sessions_to_json(struct sp_sessions *sessions, struct sp_session *session);
/* Before START is sent: leaves the mark in the run directory. */
bool sp_sessions_begin(struct sp_sessions *sessions, struct sp_session *session, GError **error);
/* The agent has said STARTED, or refused it. */
void sp_sessions_started(struct sp_sessions *sessions, struct sp_session *session,
                         const struct sp_msg_session *started);
void sp_sessions_refused(struct sp_sessions *sessions, struct sp_session *session);
/* The last event; also what the agent says of an ended session. */
void sp_sessions_ended(struct sp_sessions *sessions, struct sp_session *session,
                       const struct sp_link_event *last);
void sp_sessions_exited(struct sp_sessions *sessions, struct sp_session *session,
                        const struct sp_msg_exit *exit);
/* Waits until the server knows of the end, so that who has seen it here finds it there too; at most
 * timeout_ms, since the server may be away. */
void sp_sessions_await_taken(struct sp_sessions *sessions, struct sp_session *session,
                             int64_t timeout_ms);
/* Readers come and go. */
void sp_sessions_attach(struct sp_sessions *sessions, struct sp_session *session, int change);

/* One that is gone without an end that was seen. */
void sp_sessions_lost(struct sp_sessions *sessions, struct sp_session *session, const char *reason);
/* All sessions of a sandbox that is gone. */
void sp_sessions_lose(struct sp_sessions *sessions, const char *sandbox_id, const char *reason);
/* Its sandbox is suspended with its memory: running sessions go on when it is woken, also an exec
 * whose caller has been told so and waits no more. */
void sp_sessions_keep(struct sp_sessions *sessions, const char *sandbox_id);
/* An exec whose command could not be killed when its caller went away: it is killed later. */
void sp_sessions_orphan(struct sp_sessions *sessions, struct sp_session *session);
/* Readers attached to sessions of the sandbox. */
unsigned sp_sessions_attached(struct sp_sessions *sessions, const char *sandbox_id);
/* Reads the marks that an earlier worker left. */
void sp_sessions_adopt(struct sp_sessions *sessions, const char *sandbox_id, const char *run_dir);
/* The report of the outbox was taken (struct sp_outbox_ops); user is the node. */
void sp_sessions_taken(void *node, const char *id, const json_t *report, bool taken);

/* Running sessions that nobody has looked at for a while; a reference each. And forgets old ones.
 */
GPtrArray *sp_sessions_sweep(struct sp_sessions *sessions);
