/* The body of POST /v1/sandboxes/{id}/sessions and …/exec, and the spec that the worker gets. */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

extern const char *const sp_stdin_names[];    /* none open */
extern const char *const sp_overflow_names[]; /* block drop */
extern const char *const sp_signal_names[];   /* "SIGTERM" … in no order of numbers */

struct sp_pty {
    int64_t rows, cols;
};

struct sp_session_request {
    /* 1…1024 items; item 0 is not empty. With env at most SP_MSG_LISTS_BYTES_MAX bytes. */
    char **command;
    char *cwd;          /* absolute, or NULL: the template's */
    char **env;         /* strv "K=V", added to the sandbox's */
    char *user;         /* NULL: the sandbox's */
    int64_t timeout_ms; /* 0: none */
    int64_t grace_ms;   /* between SIGTERM and SIGKILL */
    int stdin_mode;     /* index in sp_stdin_names */
    int overflow;       /* index in sp_overflow_names */
    bool pty_set, detach;
    struct sp_pty pty;
};

/* Defaults: no timeout, grace 10 s, stdin none, overflow block. */
bool sp_session_request_decode(json_t *body, struct sp_session_request *ret, GError **error);
/* The same for exec: no pty, no open stdin, no detach, no overflow; the timeout is 10 minutes when
 * none is given. */
bool sp_exec_request_decode(json_t *body, struct sp_session_request *ret, GError **error);
void sp_session_request_clear(struct sp_session_request *request);

/* The spec of docs/worker-protocol.md. Caller owns. */
json_t *sp_session_spec(const struct sp_session_request *request);

/* Decodes {"signal":"SIGTERM"}; the name is borrowed from a constant table. */
bool sp_signal_request_decode(json_t *body, const char **ret_signal, GError **error);
