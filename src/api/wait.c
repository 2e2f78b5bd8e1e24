#include "api/api.h"
#include "api/render.h"
#include "base/error.h"
#include "base/time.h"

#define SLICE_MS 1000 /* how often a waiter looks whether its client is still there */

struct sp_operation_row *sp_api_wait(struct sp_api_call *call, const char *operation_id,
                                     GError **error)
{
    struct sp_store *store = call->api->store;
    int64_t deadline = sp_time_monotonic_ms() + call->wait_ms;
    for (;;) {
        uint64_t ticket = sp_store_ticket(store, operation_id);
        struct sp_operation_row *op =
            sp_store_operation_get(store, call->key->tenant, operation_id, error);
        int64_t now = sp_time_monotonic_ms();
        if (!op || sp_operation_ended(op->state) || now >= deadline ||
            g_atomic_int_get(&call->api->stopping) || sp_http_client_gone(call->http))
            return op;
        sp_operation_row_free(op);
        sp_store_wait(store, operation_id, ticket, MIN(deadline, now + SLICE_MS));
    }
}

static json_t *error_body(struct sp_api_call *call, const struct sp_operation_row *op,
                          int *ret_status)
{
    enum sp_error_code code = SP_ERROR_INTERNAL;
    sp_error_code_from_name(op->error_code, &code);
    g_autoptr(GError) error = g_error_new_literal(SP_ERROR, (int)code, op->error_message);
    *ret_status = sp_error_http_status(error);
    json_t *body = json_object();
    json_object_set_new(body, "code", json_string(sp_error_name(error)));
    json_object_set_new(body, "message", sp_json_text(op->error_message));
    json_object_set_new(body, "request_id", json_string(sp_http_request_id(call->http)));
    return body;
}

void sp_api_reply_operation(struct sp_api_call *call, const struct sp_operation_row *op,
                            json_t *extra, int done_status)
{
    json_t *answer = extra ? extra : json_object();
    json_object_set_new(answer, "operation", sp_render_operation(op));
    int status = op->state == SP_OPERATION_SUCCEEDED ? done_status : 202;
    if (call->wait_ms > 0) {
        char applied[32];
        g_snprintf(applied, sizeof applied, "wait=%d", (int)(call->wait_ms / 1000));
        sp_http_add_header(call->http, "Preference-Applied", applied);
        if (op->state == SP_OPERATION_FAILED)
            json_object_set_new(answer, "error", error_body(call, op, &status));
    }
    sp_api_reply(call, status, answer);
}
