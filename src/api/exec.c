/* POST …/exec: one command, waited for. The worker's answer is passed on unread: it holds the
 * output. */
#include "api/handlers.h"
#include "api/worker_client.h"
#include "base/error.h"

/* What the worker may need beyond timeout and grace to end the command and to answer. */
#define MARGIN_MS 30000

struct running {
    struct sp_api_call *call;
    struct sp_sandbox_row *sandbox;
};

/* A running command is activity: the sandbox's idle time does not begin before it has ended. */
static void tick(void *user)
{
    struct running *r = user;
    int64_t before = r->sandbox->last_active_at_ms;
    sp_store_sandbox_touch(r->call->api->store, r->sandbox);
    int64_t now = g_get_real_time() / 1000;
    if (now - before > 5000)
        r->sandbox->last_active_at_ms = now;
}

static bool ask_worker(struct sp_api_call *call, struct sp_sandbox_row *s,
                       const struct sp_session_request *request, GError **error)
{
    char session_id[SP_ID_MAX], process_id[SP_ID_MAX];
    sp_id_new("ses", session_id);
    sp_id_new("prc", process_id);
    g_autoptr(json_t) spec = sp_session_spec(request);
    json_object_set_new(spec, "session_id", json_string(session_id));
    json_object_set_new(spec, "process_id", json_string(process_id));
    g_autofree char *path = g_strdup_printf("/node/v1/sandboxes/%s/exec", s->id);
    struct running running = {call, s};
    struct sp_worker_call ask = {.method = "POST",
                                 .path = path,
                                 .json = spec,
                                 .timeout_ms = request->timeout_ms + request->grace_ms + MARGIN_MS,
                                 .tick = tick,
                                 .user = &running};
    struct sp_http_answer answer;
    sp_workers_exec_begin(call->api->workers, s->id);
    bool ok = sp_worker_ask(call, s->node, &ask, &answer, error);
    sp_workers_exec_end(call->api->workers, s->id);
    sp_store_sandbox_touch(call->api->store, s);
    if (!ok)
        return false;
    gsize len = 0;
    const void *bytes = answer.body ? g_bytes_get_data(answer.body, &len) : NULL;
    sp_api_reply_bytes(call, 200, "application/json", len ? bytes : "{}", len ? len : 2);
    sp_http_answer_clear(&answer);
    return true;
}

/* With an Idempotency-Key the command is started at most once: its output is not kept, so that a
 * repeated request can only be told so. */
static bool run_once(struct sp_api_call *call, struct sp_sandbox_row *s,
                     const struct sp_session_request *request, GError **error)
{
    struct sp_replay replay;
    if (!sp_store_replay_claim(call->api->store, &call->idem, &replay, error))
        return false;
    if (replay.found) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_CONFLICT,
                            "the command of this Idempotency-Key was started before; its result is "
                            "not kept (use a session for that)");
        return false;
    }
    GError *why = NULL;
    if (ask_worker(call, s, request, &why))
        return true;
    /* A worker's refusal means that nothing ran; without an answer it may have. */
    if (!g_error_matches(why, SP_ERROR, SP_ERROR_UNAVAILABLE))
        sp_store_replay_release(call->api->store, &call->idem);
    g_propagate_error(error, why);
    return false;
}

bool sp_api_exec(struct sp_api_call *call, GError **error)
{
    struct sp_session_request request;
    struct sp_sandbox_row *s = sp_api_running_sandbox(call, error);
    if (!s)
        return false;
    bool ok = sp_exec_request_decode(call->body, &request, error);
    if (ok) {
        ok = run_once(call, s, &request, error);
        sp_session_request_clear(&request);
    }
    sp_sandbox_row_free(s);
    return ok;
}
