/* Command sessions: made here, attached to at the worker. */
#include <string.h>

#include "api/handlers.h"
#include "api/render.h"
#include "api/worker_client.h"
#include "api/worker_json.h"
#include "base/error.h"
#include "base/time.h"

/* How long a token can be used to attach; a fresh one is had by POST …/attachments. */
#define TOKEN_LIFE_MS (3600 * (int64_t)1000)
#define START_TIMEOUT_MS 30000
#define LOOK_TIMEOUT_MS 5000

static void make_token(char ret_secret[SP_SECRET_MAX], struct sp_session_token *ret)
{
    sp_secret_new("at", ret_secret);
    sp_secret_hash(ret_secret, ret->hash);
    ret->expires_at_ms = sp_time_now_ms() + TOKEN_LIFE_MS;
}

/* {url, token, expires_at}: the one place where the token is ever said. */
static json_t *attach_json(struct sp_api_call *call, const struct sp_session_row *session,
                           const char *secret, int64_t expires_at_ms, GError **error)
{
    struct sp_store *store = call->api->store;
    struct sp_sandbox_row *s = sp_store_sandbox_get(store, NULL, session->sandbox_id, error);
    struct sp_node_row *node = s ? sp_store_node_get(store, s->node, error) : NULL;
    sp_sandbox_row_free(s);
    if (!node)
        return NULL;
    g_autofree char *url = g_strdup_printf("%s/v1/attach/%s/events", node->data_url, session->id);
    sp_node_row_free(node);
    json_t *attach = json_object();
    json_object_set_new(attach, "url", sp_json_text(url));
    json_object_set_new(attach, "token", json_string(secret));
    json_object_set_new(attach, "expires_at", sp_render_time(expires_at_ms));
    return attach;
}

/* Starts a detached command. What the worker says about the command itself (no such file) ends the
 * session; a worker that does not answer may have started it, so that the session stays open. */
static bool start(struct sp_api_call *call, const char *node, const struct sp_session_row *session,
                  GError **error)
{
    g_autofree char *path = g_strdup_printf("/node/v1/sessions/%s/start", session->id);
    g_autoptr(json_t) body = json_object();
    struct sp_worker_call ask = {
        .method = "POST", .path = path, .json = body, .timeout_ms = START_TIMEOUT_MS};
    struct sp_http_answer answer;
    GError *why = NULL;
    if (sp_worker_ask(call, node, &ask, &answer, &why)) {
        sp_http_answer_clear(&answer);
        return true;
    }
    if (!g_error_matches(why, SP_ERROR, SP_ERROR_UNAVAILABLE)) {
        g_autoptr(json_t) text = json_object();
        json_object_set_new(text, "code", json_string(sp_error_name(why)));
        json_object_set_new(text, "message", sp_json_text(why->message));
        g_autofree char *dump = sp_json_dump(text);
        struct sp_session_report report = {
            .id = session->id, .state = SP_SESSION_FAILED, .error = dump};
        sp_store_session_report(call->api->store, NULL, &report, 1, NULL);
    }
    g_propagate_error(error, why);
    return false;
}

static bool reply(struct sp_api_call *call, const char *session_id, const char *secret,
                  int64_t expires_at_ms, int status, GError **error)
{
    struct sp_session_row *session =
        sp_store_session_get(call->api->store, call->key->tenant, session_id, error);
    json_t *attach = session ? attach_json(call, session, secret, expires_at_ms, error) : NULL;
    if (attach) {
        json_t *answer = json_object();
        json_object_set_new(answer, "session", sp_render_session(session));
        json_object_set_new(answer, "attach", attach);
        sp_api_reply(call, status, answer);
    }
    sp_session_row_free(session);
    return attach != NULL;
}

static bool create(struct sp_api_call *call, const struct sp_sandbox_row *sandbox,
                   const struct sp_session_request *request, GError **error)
{
    char secret[SP_SECRET_MAX];
    g_autoptr(json_t) spec = sp_session_spec(request);
    g_autofree char *text = sp_json_dump(spec);
    struct sp_session_new new = {
        .tenant = call->key->tenant, .sandbox_id = sandbox->id, .spec = text};
    struct sp_replay made;
    make_token(secret, &new.token);
    if (!sp_store_session_create(call->api->store, &new, &call->idem, &made, error))
        return false;
    if (request->detach) {
        struct sp_session_row *session =
            sp_store_session_get(call->api->store, NULL, made.resource_id, error);
        bool ok = session && (session->state != SP_SESSION_PENDING ||
                              start(call, sandbox->node, session, error));
        sp_session_row_free(session);
        if (!ok)
            return false;
    }
    return reply(call, made.resource_id, secret, new.token.expires_at_ms, 201, error);
}

bool sp_api_session_create(struct sp_api_call *call, GError **error)
{
    struct sp_session_request request;
    struct sp_sandbox_row *sandbox = sp_api_sandbox(call, error);
    if (!sandbox)
        return false;
    bool ok = sp_session_request_decode(call->body, &request, error);
    if (ok) {
        ok = create(call, sandbox, &request, error);
        sp_session_request_clear(&request);
    }
    sp_sandbox_row_free(sandbox);
    return ok;
}

static bool path_id(struct sp_api_call *call, const char **ret, GError **error)
{
    const char *id = sp_http_param(call->http, 0);
    if (!sp_id_valid(id, "ses")) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no such session");
        return false;
    }
    *ret = id;
    return true;
}

static bool is_open(const struct sp_session_row *session)
{
    return session->state == SP_SESSION_PENDING || session->state == SP_SESSION_RUNNING;
}

/* Asks the worker how an open session stands and keeps the answer: a client that has just seen
 * process_exited must not be told "running" because the worker's own report is still under way.
 * Without an answer the row stands as it is. */
static void look_at_worker(struct sp_api_call *call, const struct sp_session_row *session)
{
    struct sp_store *store = call->api->store;
    struct sp_sandbox_row *s = sp_store_sandbox_get(store, NULL, session->sandbox_id, NULL);
    if (!s)
        return;
    g_autofree char *path = g_strdup_printf("/node/v1/sessions/%s", session->id);
    struct sp_worker_call ask = {.method = "GET", .path = path, .timeout_ms = LOOK_TIMEOUT_MS};
    struct sp_http_answer answer;
    if (s->node && sp_worker_ask(call, s->node, &ask, &answer, NULL)) {
        gsize len = 0;
        const char *text = answer.body ? g_bytes_get_data(answer.body, &len) : NULL;
        g_autoptr(json_t) item = text ? sp_json_parse(text, len, NULL) : NULL;
        g_autoptr(GPtrArray) texts = g_ptr_array_new_with_free_func(g_free);
        struct sp_session_report report = {0};
        if (item && sp_worker_session_report(item, &report, texts, NULL) &&
            strcmp(report.id, session->id) == 0 && report.state != SP_SESSION_PENDING)
            sp_store_session_report(store, s->node, &report, 1, NULL);
        sp_http_answer_clear(&answer);
    }
    sp_sandbox_row_free(s);
}

bool sp_api_session_get(struct sp_api_call *call, GError **error)
{
    const char *id;
    if (!path_id(call, &id, error))
        return false;
    struct sp_store *store = call->api->store;
    struct sp_session_row *session = sp_store_session_get(store, call->key->tenant, id, error);
    if (session && is_open(session)) {
        look_at_worker(call, session);
        sp_session_row_free(session);
        session = sp_store_session_get(store, call->key->tenant, id, error);
    }
    if (!session)
        return false;
    sp_api_reply(call, 200, sp_render_session(session));
    sp_session_row_free(session);
    return true;
}

bool sp_api_session_attachment(struct sp_api_call *call, GError **error)
{
    const char *id;
    static const struct sp_json_field no_fields[] = {{NULL}};
    char nothing;
    if (!path_id(call, &id, error) || !sp_json_decode(call->body, no_fields, &nothing, error))
        return false;
    char secret[SP_SECRET_MAX];
    struct sp_session_token token;
    make_token(secret, &token);
    return sp_store_session_add_token(call->api->store, call->key->tenant, id, &token, error) &&
           reply(call, id, secret, token.expires_at_ms, 201, error);
}
