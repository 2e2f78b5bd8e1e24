#include <string.h>

#include "model/operation.h"
#include "model/sandbox.h"

const char *const sp_state_names[SP_N_STATES + 1] = {
    [SP_STATE_CREATING] = "creating", [SP_STATE_RUNNING] = "running",
    [SP_STATE_PAUSED] = "paused",     [SP_STATE_SUSPENDED] = "suspended",
    [SP_STATE_DELETING] = "deleting", [SP_STATE_DELETED] = "deleted",
    [SP_STATE_FAILED] = "failed",
};
const char *const sp_desired_names[SP_N_DESIRED + 1] = {
    [SP_DESIRED_RUNNING] = "running",
    [SP_DESIRED_PAUSED] = "paused",
    [SP_DESIRED_SUSPENDED] = "suspended",
    [SP_DESIRED_DELETED] = "deleted",
};
const char *const sp_isolation_names[SP_N_ISOLATIONS + 1] = {
    [SP_ISOLATION_AUTO] = "auto",
    [SP_ISOLATION_CONTAINER] = "container",
    [SP_ISOLATION_GVISOR] = "gvisor",
    [SP_ISOLATION_MICROVM] = "microvm",
};
const char *const sp_on_idle_names[SP_N_ON_IDLE + 1] = {
    [SP_ON_IDLE_SUSPEND] = "suspend",
    [SP_ON_IDLE_PAUSE] = "pause",
    [SP_ON_IDLE_DELETE] = "delete",
    [SP_ON_IDLE_NONE] = "none",
};
const char *const sp_operation_kind_names[SP_N_OPERATION_KINDS + 1] = {
    [SP_OPERATION_CREATE] = "create",
    [SP_OPERATION_DELETE] = "delete",
    [SP_OPERATION_TEMPLATE_BUILD] = "template_build",
    [SP_OPERATION_PAUSE] = "pause",
    [SP_OPERATION_SUSPEND] = "suspend",
    [SP_OPERATION_WAKE] = "wake",
    [SP_OPERATION_SNAPSHOT] = "snapshot",
    [SP_OPERATION_FORK] = "fork",
    [SP_OPERATION_ROLLBACK] = "rollback",
    [SP_OPERATION_SNAPSHOT_DELETE] = "snapshot_delete",
};
const char *const sp_operation_state_names[SP_N_OPERATION_STATES + 1] = {
    [SP_OPERATION_PENDING] = "pending",
    [SP_OPERATION_RUNNING] = "running",
    [SP_OPERATION_SUCCEEDED] = "succeeded",
    [SP_OPERATION_FAILED] = "failed",
};
const char *const sp_session_state_names[SP_N_SESSION_STATES + 1] = {
    [SP_SESSION_PENDING] = "pending", [SP_SESSION_RUNNING] = "running",
    [SP_SESSION_EXITED] = "exited",   [SP_SESSION_FAILED] = "failed",
    [SP_SESSION_LOST] = "lost",
};

static int index_of(const char *const *names, const char *name)
{
    for (int i = 0; name && names[i]; i++) {
        if (strcmp(names[i], name) == 0)
            return i;
    }
    return -1;
}

/* One parser a table; a failed one leaves *ret alone. */
#define DEFINE_PARSE(function, type, names)                                                        \
    bool function(const char *name, type *ret)                                                     \
    {                                                                                              \
        int i = index_of(names, name);                                                             \
        if (i >= 0)                                                                                \
            *ret = (type)i;                                                                        \
        return i >= 0;                                                                             \
    }

DEFINE_PARSE(sp_state_parse, enum sp_state, sp_state_names)
DEFINE_PARSE(sp_desired_parse, enum sp_desired, sp_desired_names)
DEFINE_PARSE(sp_isolation_parse, enum sp_isolation, sp_isolation_names)
DEFINE_PARSE(sp_operation_kind_parse, enum sp_operation_kind, sp_operation_kind_names)
DEFINE_PARSE(sp_operation_state_parse, enum sp_operation_state, sp_operation_state_names)
DEFINE_PARSE(sp_session_state_parse, enum sp_session_state, sp_session_state_names)

bool sp_operation_ended(enum sp_operation_state state)
{
    return state == SP_OPERATION_SUCCEEDED || state == SP_OPERATION_FAILED;
}

bool sp_session_ended(enum sp_session_state state)
{
    return state != SP_SESSION_PENDING && state != SP_SESSION_RUNNING;
}
