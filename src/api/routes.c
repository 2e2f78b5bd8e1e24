/* The route table, and the way of a request from the HTTP server through checks to its handler. */
#include <string.h>

#include "api/api.h"
#include "api/handlers.h"
#include "base/error.h"
#include "base/log.h"
#include "base/time.h"
#include "model/idempotency.h"

#define KIB ((size_t)1024)
#define NO_BODY ((size_t)4 * KIB) /* a stray {} does no harm */

/* name, method, pattern, authentication, longest body. docs/openapi.yaml lists all but /worker. */
#define ROUTES(X)                                                                                  \
    X(healthz, "GET", "/healthz", OPEN, NO_BODY)                                                   \
    X(readyz, "GET", "/readyz", OPEN, NO_BODY)                                                     \
    X(version, "GET", "/version", OPEN, NO_BODY)                                                   \
    X(metrics, "GET", "/metrics", KEY, NO_BODY)                                                    \
    X(sandbox_create, "POST", "/v1/sandboxes", KEY, 256 * KIB)                                     \
    X(sandbox_list, "GET", "/v1/sandboxes", KEY, NO_BODY)                                          \
    X(sandbox_get, "GET", "/v1/sandboxes/{}", KEY, NO_BODY)                                        \
    X(sandbox_patch, "PATCH", "/v1/sandboxes/{}", KEY, 256 * KIB)                                  \
    X(sandbox_delete, "DELETE", "/v1/sandboxes/{}", KEY, NO_BODY)                                  \
    X(sandbox_pause, "POST", "/v1/sandboxes/{}/pause", KEY, NO_BODY)                               \
    X(sandbox_suspend, "POST", "/v1/sandboxes/{}/suspend", KEY, NO_BODY)                           \
    X(sandbox_wake, "POST", "/v1/sandboxes/{}/wake", KEY, NO_BODY)                                 \
    X(sandbox_rollback, "POST", "/v1/sandboxes/{}/rollback", KEY, NO_BODY)                         \
    X(sandbox_fork, "POST", "/v1/sandboxes/{}/fork", KEY, NO_BODY)                                 \
    X(snapshot_create, "POST", "/v1/sandboxes/{}/snapshots", KEY, NO_BODY)                         \
    X(snapshot_list, "GET", "/v1/snapshots", KEY, NO_BODY)                                         \
    X(snapshot_get, "GET", "/v1/snapshots/{}", KEY, NO_BODY)                                       \
    X(snapshot_delete, "DELETE", "/v1/snapshots/{}", KEY, NO_BODY)                                 \
    X(operation_get, "GET", "/v1/operations/{}", KEY, NO_BODY)                                     \
    X(operation_list, "GET", "/v1/operations", KEY, NO_BODY)                                       \
    X(session_create, "POST", "/v1/sandboxes/{}/sessions", KEY, 512 * KIB)                         \
    X(session_get, "GET", "/v1/sessions/{}", KEY, NO_BODY)                                         \
    X(session_attachment, "POST", "/v1/sessions/{}/attachments", KEY, NO_BODY)                     \
    X(process_list, "GET", "/v1/sandboxes/{}/processes", KEY, NO_BODY)                             \
    X(process_signal, "POST", "/v1/sandboxes/{}/processes/{}/signal", KEY, NO_BODY)                \
    X(exec, "POST", "/v1/sandboxes/{}/exec", KEY, 512 * KIB)                                       \
    X(template_build, "POST", "/v1/templates", KEY, 1024 * KIB)                                    \
    X(template_list, "GET", "/v1/templates", KEY, NO_BODY)                                         \
    X(template_get, "GET", "/v1/templates/{}", KEY, NO_BODY)                                       \
    X(template_log, "GET", "/v1/templates/{}/build-log", KEY, NO_BODY)                             \
    X(template_delete, "DELETE", "/v1/templates/{}", KEY, NO_BODY)                                 \
    X(node_list, "GET", "/v1/nodes", KEY, NO_BODY)                                                 \
    X(worker_register, "POST", "/worker/v1/register", NODE, 1024 * KIB)                            \
    X(worker_desired, "GET", "/worker/v1/desired", NODE, NO_BODY)                                  \
    X(worker_desired_of, "POST", "/worker/v1/desired_of", NODE, 1024 * KIB)                        \
    X(worker_observed, "POST", "/worker/v1/observed", NODE, 4096 * KIB)                            \
    X(worker_snapshots, "POST", "/worker/v1/snapshots", NODE, 1024 * KIB)                          \
    X(worker_activity, "POST", "/worker/v1/activity", NODE, 1024 * KIB)                            \
    X(worker_session_get, "GET", "/worker/v1/sessions/{}", NODE, NO_BODY)                          \
    X(worker_sessions, "POST", "/worker/v1/sessions", NODE, 4096 * KIB)                            \
    X(worker_build, "POST", "/worker/v1/builds/{}", NODE, 8192 * KIB)

enum {
#define X(name, method, pattern, auth, max_body) ROUTE_##name,
    ROUTES(X)
#undef X
};

const struct sp_api_route sp_api_routes[] = {
#define X(name, method, pattern, auth, max_body)                                                   \
    {method, pattern, sp_api_##name, SP_API_##auth, max_body},
    ROUTES(X)
#undef X
        {NULL},
};

void sp_api_reply(struct sp_api_call *call, int status, json_t *value)
{
    call->status = status;
    sp_http_respond_json(call->http, status, value);
}

void sp_api_reply_bytes(struct sp_api_call *call, int status, const char *content_type,
                        const void *bytes, size_t len)
{
    call->status = status;
    sp_http_respond_bytes(call->http, status, content_type, bytes, len);
}

/* Body and headers that every mutation of the API may have. */
static bool read_request(struct sp_api_call *call, GError **error)
{
    const char *method = call->route->method;
    if (strcmp(method, "POST") == 0 || strcmp(method, "PATCH") == 0) {
        call->body = sp_http_body_json(call->http, error);
        if (!call->body)
            return false;
    }
    if (call->route->auth != SP_API_KEY || strcmp(method, "GET") == 0)
        return true;
    const char *key = sp_http_header(call->http, "Idempotency-Key");
    if (key && !sp_idempotency_key_check(key, error))
        return false;
    if (!sp_prefer_parse(sp_http_header(call->http, "Prefer"), &call->wait_ms, error))
        return false;
    call->idem.key_id = call->key->id;
    call->idem.key = key;
    if (key)
        sp_idempotency_hash(method, sp_http_path(call->http), call->body, call->idem.hash);
    return true;
}

static void dispatch(unsigned index, struct sp_http_request *request, struct sp_api *api)
{
    int64_t begun = sp_time_monotonic_us();
    struct sp_api_call call = {.api = api, .http = request, .route = &sp_api_routes[index]};
    if (call.route->auth == SP_API_KEY)
        call.key = sp_http_data(request);
    GError *error = NULL;
    if (!read_request(&call, &error) || !call.route->handler(&call, &error)) {
        call.status = sp_error_http_status(error);
        if (call.status >= 500)
            sp_log_error("request failed", error, "request_id", sp_http_request_id(request),
                         "method", call.route->method, "path", sp_http_path(request), NULL);
        sp_http_respond_error(request, error);
        g_error_free(error);
    }
    json_decref(call.body);
    sp_metrics_request(api->metrics, index, call.status, sp_time_monotonic_us() - begun);
}

/* A handler of the HTTP server for each row: it knows which one it is. */
#define X(name, method, pattern, auth, max_body)                                                   \
    static void run_##name(struct sp_http_request *request, void *user)                            \
    {                                                                                              \
        dispatch(ROUTE_##name, request, user);                                                     \
    }
ROUTES(X)
#undef X

#define AUTHORIZE_OPEN NULL
#define AUTHORIZE_KEY sp_api_authorize_key
#define AUTHORIZE_NODE sp_api_authorize_node

const struct sp_http_route sp_api_http_routes[] = {
#define X(name, method, pattern, auth, max_body)                                                   \
    {method, pattern, run_##name, AUTHORIZE_##auth, NULL, max_body},
    ROUTES(X)
#undef X
        {NULL},
};
