/* POST …/pause, suspend, wake, rollback and fork. */
#include <string.h>

#include "api/handlers.h"
#include "api/render.h"
#include "base/error.h"
#include "base/time.h"

static json_t *sandbox_json(struct sp_api_call *call, const char *id, GError **error)
{
    struct sp_sandbox_row *s =
        sp_store_sandbox_get_any(call->api->store, call->key->tenant, id, error);
    json_t *value = s ? sp_api_render_sandbox(call, s) : NULL;
    sp_sandbox_row_free(s);
    return value;
}

/* Asks the store for the change, waits if the caller wants so, answers {sandbox, operation}. */
static bool change(struct sp_api_call *call, const struct sp_change_new *wanted, GError **error)
{
    char operation_id[SP_ID_MAX];
    const char *id;
    if (!sp_api_sandbox_id(call, &id, error) ||
        !sp_store_sandbox_change(call->api->store, call->key->tenant, id, wanted, &call->idem,
                                 operation_id, error))
        return false;
    struct sp_operation_row *op = sp_api_wait(call, operation_id, error);
    json_t *sandbox = op ? sandbox_json(call, id, error) : NULL;
    if (sandbox) {
        json_t *extra = json_object();
        json_object_set_new(extra, "sandbox", sandbox);
        sp_api_reply_operation(call, op, extra, 200);
    }
    sp_operation_row_free(op);
    return sandbox != NULL;
}

bool sp_api_sandbox_pause(struct sp_api_call *call, GError **error)
{
    struct sp_change_new wanted = {.change = SP_CHANGE_PAUSE};
    return sp_empty_request_decode(call->body, error) && change(call, &wanted, error);
}

bool sp_api_sandbox_suspend(struct sp_api_call *call, GError **error)
{
    struct sp_change_new wanted = {.change = SP_CHANGE_SUSPEND};
    return sp_suspend_request_decode(call->body, &wanted.memory, error) &&
           change(call, &wanted, error);
}

bool sp_api_sandbox_wake(struct sp_api_call *call, GError **error)
{
    struct sp_change_new wanted = {.change = SP_CHANGE_WAKE};
    return sp_empty_request_decode(call->body, error) && change(call, &wanted, error);
}

bool sp_api_sandbox_rollback(struct sp_api_call *call, GError **error)
{
    g_autofree char *snapshot_id = NULL;
    if (!sp_rollback_request_decode(call->body, &snapshot_id, error))
        return false;
    struct sp_change_new wanted = {.change = SP_CHANGE_ROLLBACK, .snapshot_id = snapshot_id};
    return change(call, &wanted, error);
}

static json_t *error_json(const char *code, const char *message)
{
    json_t *o = json_object();
    json_object_set_new(o, "code", json_string(code));
    json_object_set_new(o, "message", sp_json_text(message));
    return o;
}

/* {sandbox, operation} of one child, with "error" when it could not be made. */
static json_t *child_json(struct sp_api_call *call, const struct sp_fork_child *child,
                          bool *ret_ended)
{
    json_t *o = json_object();
    g_autoptr(GError) why = NULL;
    struct sp_operation_row *op = sp_api_wait(call, child->operation_id, &why);
    json_t *sandbox = op ? sandbox_json(call, child->sandbox_id, &why) : NULL;
    if (!sandbox) { /* deleted long ago, when the request is repeated after a day */
        json_object_set_new(o, "error", error_json(sp_error_name(why), why->message));
    } else {
        json_object_set_new(o, "sandbox", sandbox);
        json_object_set_new(o, "operation", sp_render_operation(op));
        if (op->state == SP_OPERATION_FAILED)
            json_object_set_new(o, "error", error_json(op->error_code, op->error_message));
        *ret_ended = *ret_ended && sp_operation_ended(op->state);
    }
    sp_operation_row_free(op);
    return o;
}

static void reply_children(struct sp_api_call *call, GArray *children)
{
    int64_t deadline = sp_time_monotonic_ms() + call->wait_ms;
    int64_t wait_ms = call->wait_ms;
    bool ended = true;
    json_t *results = json_array();
    for (unsigned i = 0; i < children->len; i++) {
        const struct sp_fork_child *child = &g_array_index(children, struct sp_fork_child, i);
        if (wait_ms > 0)
            call->wait_ms = MAX(deadline - sp_time_monotonic_ms(), 0);
        json_array_append_new(results, child_json(call, child, &ended));
    }
    call->wait_ms = wait_ms;
    if (wait_ms > 0) {
        char applied[32];
        g_snprintf(applied, sizeof applied, "wait=%d", (int)(wait_ms / 1000));
        sp_http_add_header(call->http, "Preference-Applied", applied);
    }
    json_t *answer = json_object();
    json_object_set_new(answer, "results", results);
    sp_api_reply(call, wait_ms > 0 && ended ? 201 : 202, answer);
}

bool sp_api_sandbox_fork(struct sp_api_call *call, GError **error)
{
    struct sp_fork_request request;
    g_autoptr(GArray) children = NULL;
    const char *id;
    if (!sp_fork_request_decode(call->body, &request, error) ||
        !sp_api_sandbox_id(call, &id, error) ||
        !sp_store_sandbox_fork(call->api->store, call->key->tenant, id, &request, &call->idem,
                               &children, error))
        return false;
    reply_children(call, children);
    return true;
}
