#include "model/change.h"

#include <stddef.h>

#include "base/error.h"
#include "base/ids.h"

const char *const sp_change_names[SP_N_CHANGES + 1] = {
    [SP_CHANGE_PAUSE] = "pause",       [SP_CHANGE_SUSPEND] = "suspend",   [SP_CHANGE_WAKE] = "wake",
    [SP_CHANGE_ROLLBACK] = "rollback", [SP_CHANGE_SNAPSHOT] = "snapshot", [SP_CHANGE_FORK] = "fork",
    [SP_CHANGE_DELETE] = "delete",
};

/* What a change asks of each state in which a sandbox can be changed, when nothing is under way. */
#define YES SP_VERDICT_ALLOWED
#define NO SP_VERDICT_PRECONDITION
static const enum sp_verdict at_rest[SP_CHANGE_DELETE][3] = {
    /*                        running          paused           suspended */
    [SP_CHANGE_PAUSE] = {YES, SP_VERDICT_DONE, NO},
    [SP_CHANGE_SUSPEND] = {YES, YES, SP_VERDICT_DONE},
    [SP_CHANGE_WAKE] = {SP_VERDICT_DONE, YES, YES},
    [SP_CHANGE_ROLLBACK] = {YES, YES, YES},
    [SP_CHANGE_SNAPSHOT] = {YES, YES, YES},
    [SP_CHANGE_FORK] = {YES, YES, YES},
};
#undef YES
#undef NO

static bool repeats(enum sp_operation_kind under_way, enum sp_change change)
{
    switch (change) {
    case SP_CHANGE_PAUSE:
        return under_way == SP_OPERATION_PAUSE;
    case SP_CHANGE_SUSPEND:
        return under_way == SP_OPERATION_SUSPEND;
    case SP_CHANGE_WAKE:
        return under_way == SP_OPERATION_WAKE;
    default: /* two rollbacks may name different snapshots */
        return false;
    }
}

enum sp_verdict sp_change_decide(const struct sp_change_facts *facts, enum sp_change change)
{
    bool deleting = facts->desired == SP_DESIRED_DELETED;
    if (change == SP_CHANGE_DELETE)
        return deleting ? SP_VERDICT_REPEAT : SP_VERDICT_ALLOWED;
    if (deleting)
        return SP_VERDICT_PRECONDITION;
    unsigned column = 0;
    switch (facts->state) {
    case SP_STATE_RUNNING:
        break;
    case SP_STATE_PAUSED:
        column = 1;
        break;
    case SP_STATE_SUSPENDED:
        column = 2;
        break;
    default: /* creating, failed */
        return SP_VERDICT_PRECONDITION;
    }
    if (facts->under_way != SP_N_OPERATION_KINDS)
        return repeats(facts->under_way, change) ? SP_VERDICT_REPEAT : SP_VERDICT_CONFLICT;
    enum sp_verdict verdict = at_rest[change][column];
    /* The snapshot is to show the sandbox as it was when it was asked for. */
    bool changes = change != SP_CHANGE_SNAPSHOT && change != SP_CHANGE_FORK;
    return verdict == SP_VERDICT_ALLOWED && changes && facts->saving ? SP_VERDICT_CONFLICT
                                                                     : verdict;
}

enum sp_operation_kind sp_change_operation(enum sp_change change)
{
    switch (change) {
    case SP_CHANGE_PAUSE:
        return SP_OPERATION_PAUSE;
    case SP_CHANGE_SUSPEND:
        return SP_OPERATION_SUSPEND;
    case SP_CHANGE_WAKE:
        return SP_OPERATION_WAKE;
    default:
        return SP_OPERATION_ROLLBACK;
    }
}

enum sp_desired sp_change_desired(enum sp_change change)
{
    switch (change) {
    case SP_CHANGE_PAUSE:
        return SP_DESIRED_PAUSED;
    case SP_CHANGE_SUSPEND:
        return SP_DESIRED_SUSPENDED;
    default:
        return SP_DESIRED_RUNNING;
    }
}

static const struct sp_json_field suspend_table[] = {{"memory", SP_JSON_BOOL, 0}, {NULL}};

bool sp_suspend_request_decode(json_t *body, bool *ret_memory, GError **error)
{
    bool memory = true;
    if (!sp_json_decode(body, suspend_table, &memory, error))
        return false;
    *ret_memory = memory;
    return true;
}

static const struct sp_json_field fork_table[] = {
    {"count", SP_JSON_INT, offsetof(struct sp_fork_request, count), 1, SP_FORK_MAX},
    {"memory", SP_JSON_BOOL, offsetof(struct sp_fork_request, memory)},
    {NULL},
};

bool sp_fork_request_decode(json_t *body, struct sp_fork_request *ret, GError **error)
{
    struct sp_fork_request r = {.count = 1, .memory = true};
    if (!sp_json_decode(body, fork_table, &r, error))
        return false;
    *ret = r;
    return true;
}

static const struct sp_json_field snapshot_table[] = {
    {"name", SP_JSON_STRING, offsetof(struct sp_snapshot_request, name), 1, 63},
    {"memory", SP_JSON_BOOL, offsetof(struct sp_snapshot_request, memory)},
    {NULL},
};

bool sp_snapshot_request_decode(json_t *body, struct sp_snapshot_request *ret, GError **error)
{
    struct sp_snapshot_request r = {.memory = true};
    if (!sp_json_decode(body, snapshot_table, &r, error) ||
        !sp_check_name(r.name, "/name", error)) {
        sp_snapshot_request_clear(&r);
        return false;
    }
    *ret = r;
    return true;
}

void sp_snapshot_request_clear(struct sp_snapshot_request *request)
{
    sp_json_clear(snapshot_table, request);
}

static const struct sp_json_field rollback_table[] = {
    {"snapshot_id", SP_JSON_STRING, 0, 1, 64, .required = true},
    {NULL},
};

bool sp_rollback_request_decode(json_t *body, char **ret_snapshot_id, GError **error)
{
    char *id = NULL;
    bool ok = sp_json_decode(body, rollback_table, &id, error);
    if (ok && !sp_id_valid(id, "snp")) {
        sp_error_set_field(error, "/snapshot_id", "there is no snapshot %s", id);
        ok = false;
    }
    if (ok)
        *ret_snapshot_id = g_steal_pointer(&id);
    g_free(id);
    return ok;
}

bool sp_empty_request_decode(json_t *body, GError **error)
{
    static const struct sp_json_field no_fields[] = {{NULL}};
    char nothing;
    return sp_json_decode(body, no_fields, &nothing, error);
}
