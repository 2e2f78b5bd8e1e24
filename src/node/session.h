/*
 * One command session as the worker sees it: spec and tokens from the server, state from the agent.
 *
 * A cache, but for one thing that must survive: that a START was sent. <run_dir>/sessions/<id> is
 * made before it and removed when the server has taken the end; with it a restarted worker finds
 * the sessions whose end it has to report, and never starts a command twice.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>

#include "base/ids.h"
#include "model/operation.h"
#include "node/link.h"

struct sp_session_spec {
    char **command, **env; /* NULL command: the spec is not known */
    char *cwd, *user;
    int64_t timeout_ms, grace_ms;
    int stdin_mode, overflow; /* indices in sp_stdin_names, sp_overflow_names */
    int64_t rows, cols;
};

struct sp_session_token {
    char hash[SP_HASH_HEX];
    int64_t expires_at_ms;
};

struct sp_session {
    gint refs;
    char id[SP_ID_MAX];
    /* Guarded by the lock of the sessions; the spec is set once and then only read. */
    char sandbox_id[SP_ID_MAX];
    char process_id[SP_ID_MAX];
    struct sp_session_spec spec;
    GArray *tokens;              /* struct sp_session_token */
    enum sp_session_state state; /* RUNNING: START was sent, no end is known */
    int32_t pid;
    struct sp_msg_exit exit; /* EXITED, if has_exit */
    bool has_exit;           /* false: a previous worker saw the end */
    char *code, *message;    /* FAILED, LOST */
    int64_t started_at_ms, ended_at_ms;
    unsigned attached;       /* readers of its events */
    int64_t looked_at_ms;    /* monotonic: the sweeper, or use */
    int64_t asked_window_ms; /* limits questions to the server about tokens */
    unsigned asked;
    bool unlisted;    /* of an exec: the server has no row of it and wants no report */
    bool orphan;      /* an exec of an earlier worker, or one that nobody waits for any more */
    bool end_taken;   /* the server knows the end */
    bool wanted_gone; /* its sandbox is gone: drop it when the server knows the end */
};

struct sp_session *sp_session_ref(struct sp_session *session);
void sp_session_unref(struct sp_session *session);
/* Decodes an answer of GET /worker/v1/sessions/{id} or the body of exec; false: malformed. Fields
 * that are set already stay. */
bool sp_session_fill(struct sp_session *session, json_t *body, GError **error);
/* Replaces the tokens by those of the answer. */
void sp_session_fill_tokens(struct sp_session *session, json_t *body);
/* Whether the token is one of the session's and still valid; in constant time. */
bool sp_session_token_valid(const struct sp_session *session, const char *hash, int64_t now_ms);
/* The report of docs/worker-protocol.md. */
json_t *sp_session_report(const struct sp_session *session);
/* {exit_code, …} */
json_t *sp_session_exit_json(const struct sp_msg_exit *exit);
