#include "node/upstream.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "disk/template.h"
#include "node/drivers.h"
#include "node/pool.h"
#include "node/table.h"

#define CALL_TIMEOUT_MS 5000

static bool post(struct sp_node *node, const char *path, json_t *body, json_t **ret_answer,
                 GError **error)
{
    json_t *answer =
        sp_http_call_json(node->server, "POST", path, body, CALL_TIMEOUT_MS, NULL, error);
    if (!answer)
        return false;
    if (ret_answer)
        *ret_answer = answer;
    else
        json_decref(answer);
    return true;
}

/* Digests of the templates on this node. */
static json_t *templates(struct sp_node *node)
{
    g_auto(GStrv) digests = node->volume ? sp_template_list(node->volume, NULL) : NULL;
    return sp_json_from_strv(digests);
}

json_t *sp_upstream_register(struct sp_node *node, GError **error)
{
    g_auto(GStrv) ids = sp_table_ids(node->table);
    g_autoptr(json_t) body = json_object();
    json_object_set_new(body, "protocol", json_integer(1));
    json_object_set_new(body, "node", json_string(node->config->node_name));
    json_object_set_new(body, "instance", json_string(node->instance));
    json_object_set_new(body, "data_url", json_string(node->data_url));
    json_object_set_new(body, "tiers", sp_drivers_to_json(node->drivers));
    json_object_set_new(body, "templates", templates(node));
    json_object_set_new(body, "sandboxes", sp_json_from_strv(ids));
    json_object_set_new(body, "pools", sp_pool_to_json(node->pool));
    json_t *answer;
    return post(node, "/worker/v1/register", body, &answer, error) ? answer : NULL;
}

static bool stop_asked(void *user)
{
    return sp_node_stopping(user);
}

json_t *sp_upstream_desired(struct sp_node *node, int64_t after, int wait_ms, GError **error)
{
    g_autofree char *name = g_uri_escape_string(node->config->node_name, NULL, FALSE);
    g_autofree char *path = g_strdup_printf(
        "/worker/v1/desired?node=%s&after=%" PRId64 "&wait_ms=%d", name, after, wait_ms);
    struct sp_http_call call = {
        .method = "GET",
        .path = path,
        .timeout_ms = wait_ms + CALL_TIMEOUT_MS,
        .cancelled = stop_asked,
        .user = node,
    };
    struct sp_http_answer answer = {0};
    if (!sp_http_call(node->server, &call, &answer, error))
        return NULL;
    json_t *value = NULL;
    if (answer.status / 100 == 2) {
        gsize len;
        const char *text = g_bytes_get_data(answer.body, &len);
        value = sp_json_parse(text, len, error);
    } else {
        sp_http_answer_to_error(&answer, error);
    }
    sp_http_answer_clear(&answer);
    return value;
}

json_t *sp_upstream_desired_of(struct sp_node *node, char *const *ids, GError **error)
{
    g_autoptr(json_t) body = json_object();
    json_object_set_new(body, "node", json_string(node->config->node_name));
    json_object_set_new(body, "ids", sp_json_from_strv(ids));
    json_t *answer;
    return post(node, "/worker/v1/desired_of", body, &answer, error) ? answer : NULL;
}

bool sp_upstream_observed(struct sp_node *node, json_t *sandboxes, GError **error)
{
    g_autoptr(json_t) body = json_object();
    json_object_set_new(body, "node", json_string(node->config->node_name));
    json_object_set_new(body, "instance", json_string(node->instance));
    json_object_set(body, "sandboxes", sandboxes);
    return post(node, "/worker/v1/observed", body, NULL, error);
}

bool sp_upstream_sessions(struct sp_node *node, json_t *sessions, GError **error)
{
    g_autoptr(json_t) body = json_object();
    json_object_set_new(body, "node", json_string(node->config->node_name));
    json_object_set(body, "sessions", sessions);
    return post(node, "/worker/v1/sessions", body, NULL, error);
}

bool sp_upstream_snapshots(struct sp_node *node, json_t *snapshots, GError **error)
{
    g_autoptr(json_t) body = json_object();
    json_object_set_new(body, "node", json_string(node->config->node_name));
    json_object_set(body, "snapshots", snapshots);
    return post(node, "/worker/v1/snapshots", body, NULL, error);
}

bool sp_upstream_activity(struct sp_node *node, json_t *sandboxes, GError **error)
{
    g_autoptr(json_t) body = json_object();
    json_object_set_new(body, "node", json_string(node->config->node_name));
    json_object_set(body, "sandboxes", sandboxes);
    return post(node, "/worker/v1/activity", body, NULL, error);
}

json_t *sp_upstream_session(struct sp_node *node, const char *session_id, GError **error)
{
    g_autofree char *path = g_strdup_printf("/worker/v1/sessions/%s", session_id);
    return sp_http_call_json(node->server, "GET", path, NULL, CALL_TIMEOUT_MS, NULL, error);
}

bool sp_upstream_build(struct sp_node *node, const char *build_id, json_t *body, bool *ret_cancel,
                       GError **error)
{
    g_autofree char *id = g_uri_escape_string(build_id, NULL, FALSE);
    g_autofree char *path = g_strdup_printf("/worker/v1/builds/%s", id);
    json_t *answer;
    if (!post(node, path, body, &answer, error))
        return false;
    *ret_cancel = json_is_true(json_object_get(answer, "cancel"));
    json_decref(answer);
    return true;
}
