/* The plain values of operations, command sessions and template builds. */
#pragma once

#include <stdbool.h>

enum sp_operation_kind {
    SP_OPERATION_CREATE,
    SP_OPERATION_DELETE,
    SP_OPERATION_TEMPLATE_BUILD,
    SP_OPERATION_PAUSE,
    SP_OPERATION_SUSPEND,
    SP_OPERATION_WAKE,
    SP_OPERATION_SNAPSHOT,
    SP_OPERATION_FORK, /* of one child */
    SP_OPERATION_ROLLBACK,
    SP_OPERATION_SNAPSHOT_DELETE,
    SP_N_OPERATION_KINDS,
};
enum sp_operation_state {
    SP_OPERATION_PENDING,
    SP_OPERATION_RUNNING,
    SP_OPERATION_SUCCEEDED,
    SP_OPERATION_FAILED,
    SP_N_OPERATION_STATES,
};
/* Of a command session. LOST: the sandbox has gone without an exit or an error of the command. */
enum sp_session_state {
    SP_SESSION_PENDING,
    SP_SESSION_RUNNING,
    SP_SESSION_EXITED,
    SP_SESSION_FAILED,
    SP_SESSION_LOST,
    SP_N_SESSION_STATES,
};

/* All NULL-terminated, for SP_JSON_ENUM. Builds use the names of operation states. */
extern const char *const sp_operation_kind_names[SP_N_OPERATION_KINDS + 1];
extern const char *const sp_operation_state_names[SP_N_OPERATION_STATES + 1];
extern const char *const sp_session_state_names[SP_N_SESSION_STATES + 1];

/* false when the name is unknown. */
bool sp_operation_kind_parse(const char *name, enum sp_operation_kind *ret);
bool sp_operation_state_parse(const char *name, enum sp_operation_state *ret);
bool sp_session_state_parse(const char *name, enum sp_session_state *ret);
/* Whether nothing follows this state. */
bool sp_operation_ended(enum sp_operation_state state);
bool sp_session_ended(enum sp_session_state state);
