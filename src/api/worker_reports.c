/* The worker protocol, what the worker reports: sandboxes, sessions, builds. */
#include <string.h>

#include "api/handlers.h"
#include "api/worker_json.h"
#include "base/error.h"
#include "base/time.h"

static bool read_observation(json_t *item, struct sp_observation *ret, char **ret_steps,
                             GError **error)
{
    const char *state;
    if (!sp_worker_text(item, "id", true, &ret->id, error) ||
        !sp_worker_integer(item, "generation", true, &ret->generation, error) ||
        !sp_worker_text(item, "state", true, &state, error) ||
        !sp_worker_text(item, "reason", false, &ret->reason, error) ||
        !sp_worker_integer(item, "started_at_ms", false, &ret->started_at_ms, error))
        return false;
    if (!sp_state_parse(state, &ret->state)) {
        sp_error_set_field(error, "/state", "unknown state %s", state);
        return false;
    }
    sp_worker_error(item, &ret->error_code, &ret->error_message);
    *ret_steps = sp_worker_dump(item, "steps");
    ret->steps = *ret_steps;
    return true;
}

/* How long the operations took that this report has ended. */
static void measure(struct sp_api_call *call, const struct sp_observation *seen, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (seen[i].error_code ||
            (seen[i].state != SP_STATE_RUNNING && seen[i].state != SP_STATE_PAUSED &&
             seen[i].state != SP_STATE_SUSPENDED))
            continue;
        struct sp_sandbox_row *s = sp_store_sandbox_get(call->api->store, NULL, seen[i].id, NULL);
        if (s)
            sp_api_measure(call, s->operation_id);
        sp_sandbox_row_free(s);
    }
}

bool sp_api_worker_observed(struct sp_api_call *call, GError **error)
{
    const char *node;
    json_t *list, *item;
    size_t i;
    if (!sp_worker_text(call->body, "node", true, &node, error) ||
        !sp_worker_array(call->body, "sandboxes", &list, error))
        return false;
    unsigned n = (unsigned)json_array_size(list);
    g_autofree struct sp_observation *seen = g_new0(struct sp_observation, n + 1);
    g_autoptr(GPtrArray) texts = g_ptr_array_new_with_free_func(g_free);
    json_array_foreach(list, i, item)
    {
        char *steps = NULL;
        if (!read_observation(item, &seen[i], &steps, error))
            return false;
        if (steps)
            g_ptr_array_add(texts, steps);
    }
    if (!sp_store_observe(call->api->store, node, seen, n, error))
        return false;
    sp_api_reply(call, 200, json_object());
    measure(call, seen, n);
    return true;
}

bool sp_worker_session_report(json_t *item, struct sp_session_report *ret, GPtrArray *texts,
                              GError **error)
{
    const char *state;
    if (!sp_worker_text(item, "id", true, &ret->id, error) ||
        !sp_worker_text(item, "state", true, &state, error) ||
        !sp_worker_integer(item, "started_at_ms", false, &ret->started_at_ms, error) ||
        !sp_worker_integer(item, "ended_at_ms", false, &ret->ended_at_ms, error))
        return false;
    if (!sp_session_state_parse(state, &ret->state)) {
        sp_error_set_field(error, "/sessions", "unknown state %s", state);
        return false;
    }
    char *exit = sp_worker_dump(item, "exit"), *why = sp_worker_dump(item, "error");
    g_ptr_array_add(texts, exit);
    g_ptr_array_add(texts, why);
    ret->exit = exit;
    ret->error = why;
    return true;
}

bool sp_api_worker_sessions(struct sp_api_call *call, GError **error)
{
    const char *node;
    json_t *list, *item;
    size_t i;
    if (!sp_worker_text(call->body, "node", true, &node, error) ||
        !sp_worker_array(call->body, "sessions", &list, error))
        return false;
    unsigned n = (unsigned)json_array_size(list);
    g_autofree struct sp_session_report *reports = g_new0(struct sp_session_report, n + 1);
    g_autoptr(GPtrArray) texts = g_ptr_array_new_with_free_func(g_free);
    json_array_foreach(list, i, item)
    {
        if (!sp_worker_session_report(item, &reports[i], texts, error))
            return false;
    }
    if (!sp_store_session_report(call->api->store, node, reports, n, error))
        return false;
    sp_api_reply(call, 200, json_object());
    return true;
}

bool sp_api_worker_build(struct sp_api_call *call, GError **error)
{
    struct sp_build_report report = {0};
    const char *state;
    if (!sp_worker_text(call->body, "state", true, &state, error) ||
        !sp_worker_text(call->body, "log", false, &report.log, error) ||
        !sp_worker_text(call->body, "digest", false, &report.digest, error) ||
        !sp_worker_integer(call->body, "size_bytes", false, &report.size_bytes, error))
        return false;
    if (!sp_operation_state_parse(state, &report.state)) {
        sp_error_set_field(error, "/state", "unknown state %s", state);
        return false;
    }
    if (report.state == SP_OPERATION_SUCCEEDED &&
        (!report.digest || !sp_digest_valid(report.digest))) {
        sp_error_set_field(error, "/digest", "a build that succeeded has a digest");
        return false;
    }
    sp_worker_error(call->body, &report.error_code, &report.error_message);
    g_autofree char *config = sp_worker_dump(call->body, "config");
    report.config = config;
    bool cancel = false;
    if (!sp_store_build_report(call->api->store, sp_http_param(call->http, 0), &report, &cancel,
                               error))
        return false;
    json_t *answer = json_object();
    json_object_set_new(answer, "cancel", json_boolean(cancel));
    sp_api_reply(call, 200, answer);
    return true;
}
