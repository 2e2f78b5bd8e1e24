#include "node/node_api.h"

#include <string.h>

#include "base/error.h"
#include "base/ids.h"
#include "base/json.h"
#include "base/time.h"
#include "node/session_run.h"
#include "node/signal_name.h"

#define REQUEST_MS 10000

static int64_t deadline(void)
{
    return sp_time_monotonic_us() + REQUEST_MS * (int64_t)1000;
}

bool sp_node_authorize(struct sp_http_request *request, void *user, GError **error)
{
    struct sp_node *node = user;
    char hash[SP_HASH_HEX];
    const char *token = sp_http_bearer(request);
    if (token && strlen(token) < SP_SECRET_MAX) {
        sp_secret_hash(token, hash);
        if (sp_hash_equal(hash, node->node_key_hash))
            return true;
    }
    g_set_error(error, SP_ERROR, SP_ERROR_UNAUTHENTICATED, "the node key is needed here");
    return false;
}

void sp_node_session_start(struct sp_http_request *request, void *user)
{
    struct sp_node *node = user;
    g_autoptr(GError) error = NULL;
    struct sp_sandbox_use use = {0};
    struct sp_session *session = sp_sessions_get(node->sessions, sp_http_param(request, 0), &error);
    if (session && sp_table_use(node->table, session->sandbox_id, &use, &error) &&
        sp_session_start(node, session, &use, &error))
        sp_http_respond_json(request, 200, sp_sessions_to_json(node->sessions, session));
    else
        sp_http_respond_error(request, error);
    sp_sandbox_use_clear(&use);
    sp_session_unref(session);
}

void sp_node_session_get(struct sp_http_request *request, void *user)
{
    struct sp_node *node = user;
    g_autoptr(GError) error = NULL;
    struct sp_session *session = sp_sessions_get(node->sessions, sp_http_param(request, 0), &error);
    if (session) {
        struct sp_session_view view;
        sp_sessions_view(node->sessions, session, &view);
        if (view.state == SP_SESSION_RUNNING)
            sp_session_look(node, session);
        sp_http_respond_json(request, 200, sp_sessions_to_json(node->sessions, session));
    } else {
        sp_http_respond_error(request, error);
    }
    sp_session_unref(session);
}

static json_t *text_of(struct sp_span span)
{
    g_autofree char *text = g_utf8_make_valid((const char *)span.bytes, (gssize)span.len);
    return json_string(text);
}

/* Takes one process of the agent's list. The session id is kept: its process id comes later, when
 * the answer of the agent need not be held any more. */
static void add_process(void *user, const struct sp_msg_process *process)
{
    json_t *item = json_object(), *command = json_array();
    struct sp_span argument;
    size_t at = 0;
    while (sp_msg_list_next(&process->argv, &at, &argument))
        json_array_append_new(command, text_of(argument));
    char started_at[SP_TIME_TEXT];
    sp_time_format((int64_t)MIN(process->started_realtime_ms, (uint64_t)253402300799999),
                   started_at);
    json_object_set_new(item, "process_id", text_of(process->session_id));
    json_object_set_new(item, "pid", json_integer(process->pid));
    json_object_set_new(item, "command", command);
    json_object_set_new(item, "user", text_of(process->user));
    json_object_set_new(item, "started_at", json_string(started_at));
    json_object_set_new(item, "cpu_ms",
                        json_integer((json_int_t)MIN(process->cpu_ms, (uint64_t)INT64_MAX)));
    json_object_set_new(item, "rss_bytes",
                        json_integer((json_int_t)MIN(process->rss_bytes, (uint64_t)INT64_MAX)));
    json_array_append_new(user, item);
}

/* A process that a fork's child has from its origin is of no session of the child's: its process id
 * is made of its session's id, so that it is the same at each look. False: not a session id. */
static bool inherited_process_id(const char *session_id, char ret[SP_ID_MAX])
{
    if (!session_id || !sp_id_valid(session_id, "ses"))
        return false;
    g_snprintf(ret, SP_ID_MAX, "prc%s", session_id + strlen("ses"));
    return true;
}

/* The live processes of a sandbox, with their process ids. NULL on failure; caller owns. */
static json_t *live_processes(struct sp_node *node, const char *sandbox_id, struct sp_link *link,
                              GError **error)
{
    json_t *list = json_array();
    if (!sp_link_processes(link, deadline(), add_process, list, error)) {
        json_decref(list);
        return NULL;
    }
    json_t *items = json_array(), *item;
    size_t i;
    json_array_foreach(list, i, item)
    {
        const char *id = json_string_value(json_object_get(item, "process_id"));
        char process_id[SP_ID_MAX];
        if (!inherited_process_id(id, process_id))
            continue; /* the ready command: not shown */
        struct sp_session *session = sp_sessions_get(node->sessions, id, NULL);
        bool own = session && strcmp(session->sandbox_id, sandbox_id) == 0;
        json_object_set_new(item, "process_id",
                            json_string(own ? session->process_id : process_id));
        json_array_append(items, item);
        sp_session_unref(session);
    }
    json_decref(list);
    return items;
}

void sp_node_processes(struct sp_http_request *request, void *user)
{
    struct sp_node *node = user;
    g_autoptr(GError) error = NULL;
    struct sp_sandbox_use use = {0};
    json_t *items = NULL;
    if (sp_table_use(node->table, sp_http_param(request, 0), &use, &error))
        items = live_processes(node, sp_http_param(request, 0), use.link, &error);
    if (items) {
        json_t *answer = json_object();
        json_object_set_new(answer, "items", items);
        sp_http_respond_json(request, 200, answer);
    } else {
        sp_http_respond_error(request, error);
    }
    sp_sandbox_use_clear(&use);
}

static bool lists_process(json_t *items, const char *process_id)
{
    json_t *item;
    size_t i;
    json_array_foreach(items, i, item)
    {
        if (g_strcmp0(json_string_value(json_object_get(item, "process_id")), process_id) == 0)
            return true;
    }
    return false;
}

/* The id of the session of a process of the sandbox. */
static bool session_of_process(struct sp_node *node, const char *sandbox_id, const char *process_id,
                               struct sp_link *link, char ret[SP_ID_MAX], GError **error)
{
    struct sp_session *session = sp_sessions_by_process(node->sessions, sandbox_id, process_id);
    bool found = session != NULL;
    if (!found) {
        /* After a restart the process ids come back with the list. */
        g_autoptr(json_t) items = live_processes(node, sandbox_id, link, error);
        if (!items)
            return false;
        session = sp_sessions_by_process(node->sessions, sandbox_id, process_id);
        found = session || (sp_id_valid(process_id, "prc") && lists_process(items, process_id));
    }
    if (session)
        g_strlcpy(ret, session->id, SP_ID_MAX);
    else if (found) /* inherited_process_id() */
        g_snprintf(ret, SP_ID_MAX, "ses%s", process_id + strlen("prc"));
    sp_session_unref(session);
    if (!found)
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "no process %s in this sandbox",
                    process_id);
    return found;
}

void sp_node_process_signal(struct sp_http_request *request, void *user)
{
    struct sp_node *node = user;
    const char *sandbox_id = sp_http_param(request, 0);
    struct sp_sandbox_use use = {0};
    char session_id[SP_ID_MAX];
    struct sp_msg_signal signal = {.scope = SP_SIGNAL_GROUP};
    g_autoptr(GError) error = NULL;
    g_autoptr(json_t) body = sp_http_body_json(request, &error);
    if (body && sp_signal_from_body(body, &signal.signal, &error) &&
        sp_table_use(node->table, sandbox_id, &use, &error) &&
        session_of_process(node, sandbox_id, sp_http_param(request, 1), use.link, session_id,
                           &error)) {
        signal.session_id = sp_span_of(session_id);
        sp_link_signal(use.link, &signal, deadline(), &error);
    }
    if (!error)
        sp_http_respond_json(request, 200, json_object());
    else
        sp_http_respond_error(request, error);
    sp_sandbox_use_clear(&use);
}
