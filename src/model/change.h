/*
 * What may be asked of a sandbox in which state: the rules of docs/lifecycle.md §1 as a pure
 * function. tests/unit/model/change.c goes through every combination.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>

#include "model/operation.h"
#include "model/sandbox.h"

enum sp_change {
    SP_CHANGE_PAUSE,
    SP_CHANGE_SUSPEND,
    SP_CHANGE_WAKE,
    SP_CHANGE_ROLLBACK,
    SP_CHANGE_SNAPSHOT,
    SP_CHANGE_FORK,
    SP_CHANGE_DELETE,
    SP_N_CHANGES,
};
extern const char *const sp_change_names[SP_N_CHANGES + 1]; /* NULL-terminated */

enum sp_verdict {
    SP_VERDICT_ALLOWED,
    SP_VERDICT_DONE,         /* it is so already: an operation that has succeeded answers */
    SP_VERDICT_REPEAT,       /* this very change is under way: its operation answers */
    SP_VERDICT_CONFLICT,     /* another one is under way, or a snapshot is being taken */
    SP_VERDICT_PRECONDITION, /* not possible in this state */
    SP_N_VERDICTS,
};

/* Of a sandbox that is not finally deleted. */
struct sp_change_facts {
    enum sp_state state;
    enum sp_desired desired;
    /* The kind of its operation that has not ended; SP_N_OPERATION_KINDS: there is none. */
    enum sp_operation_kind under_way;
    bool saving; /* a snapshot of it, also one of a fork, is being taken */
};
enum sp_verdict sp_change_decide(const struct sp_change_facts *facts, enum sp_change change);

/* Of PAUSE, SUSPEND, WAKE and ROLLBACK: the operation's kind and the state that is then wanted. */
enum sp_operation_kind sp_change_operation(enum sp_change change);
enum sp_desired sp_change_desired(enum sp_change change);

/* --- bodies of the requests; unknown fields and values out of range name the field */
/* {memory}: of suspend. memory is true when it is not said. */
bool sp_suspend_request_decode(json_t *body, bool *ret_memory, GError **error);

struct sp_fork_request {
    int64_t count; /* 1…SP_FORK_MAX */
    bool memory;
};
#define SP_FORK_MAX 100
bool sp_fork_request_decode(json_t *body, struct sp_fork_request *ret, GError **error);

struct sp_snapshot_request {
    char *name; /* a label, NULL: none; it need not be unique */
    bool memory;
};
bool sp_snapshot_request_decode(json_t *body, struct sp_snapshot_request *ret, GError **error);
void sp_snapshot_request_clear(struct sp_snapshot_request *request);

/* {snapshot_id}: the caller frees it. */
bool sp_rollback_request_decode(json_t *body, char **ret_snapshot_id, GError **error);
/* A body without any field (pause, wake). */
bool sp_empty_request_decode(json_t *body, GError **error);
