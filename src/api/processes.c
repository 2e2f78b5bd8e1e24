#include "api/handlers.h"
#include "api/worker_client.h"
#include "base/error.h"

#define TIMEOUT_MS 15000

static void pass_on(struct sp_api_call *call, struct sp_http_answer *answer)
{
    gsize len = 0;
    const void *bytes = answer->body ? g_bytes_get_data(answer->body, &len) : "";
    sp_api_reply_bytes(call, 200, "application/json", len ? bytes : "{}", len ? len : 2);
    sp_http_answer_clear(answer);
}

bool sp_api_process_list(struct sp_api_call *call, GError **error)
{
    struct sp_sandbox_row *s = sp_api_running_sandbox(call, error);
    if (!s)
        return false;
    g_autofree char *path = g_strdup_printf("/node/v1/sandboxes/%s/processes", s->id);
    struct sp_worker_call ask = {.method = "GET", .path = path, .timeout_ms = TIMEOUT_MS};
    struct sp_http_answer answer;
    bool ok = sp_worker_ask(call, s->node, &ask, &answer, error);
    if (ok)
        pass_on(call, &answer);
    sp_sandbox_row_free(s);
    return ok;
}

static bool send_signal(struct sp_api_call *call, const struct sp_sandbox_row *s,
                        const char *process_id, const char *signal, GError **error)
{
    struct sp_replay replay;
    if (!sp_store_replay_claim(call->api->store, &call->idem, &replay, error))
        return false;
    if (replay.found) { /* it was sent by the first request */
        sp_api_reply(call, 200, json_object());
        return true;
    }
    g_autofree char *path =
        g_strdup_printf("/node/v1/sandboxes/%s/processes/%s/signal", s->id, process_id);
    g_autoptr(json_t) body = json_object();
    json_object_set_new(body, "signal", json_string(signal));
    struct sp_worker_call ask = {
        .method = "POST", .path = path, .json = body, .timeout_ms = TIMEOUT_MS};
    struct sp_http_answer answer;
    GError *why = NULL;
    if (!sp_worker_ask(call, s->node, &ask, &answer, &why)) {
        if (!g_error_matches(why, SP_ERROR, SP_ERROR_UNAVAILABLE))
            sp_store_replay_release(call->api->store, &call->idem);
        g_propagate_error(error, why);
        return false;
    }
    pass_on(call, &answer);
    return true;
}

bool sp_api_process_signal(struct sp_api_call *call, GError **error)
{
    const char *signal;
    const char *process_id = sp_http_param(call->http, 1);
    struct sp_sandbox_row *s = sp_api_running_sandbox(call, error);
    if (!s)
        return false;
    bool ok = sp_signal_request_decode(call->body, &signal, error);
    if (ok && !sp_id_valid(process_id, "prc")) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no such process");
        ok = false;
    }
    ok = ok && send_signal(call, s, process_id, signal, error);
    sp_sandbox_row_free(s);
    return ok;
}
