/* The worker protocol, what the worker asks: registration, the desired state, sessions. */
#include <string.h>

#include "api/handlers.h"
#include "api/render.h"
#include "api/worker_json.h"
#include "base/error.h"
#include "base/time.h"

#define PROTOCOL 1
#define LEASE_MS 15000
#define MAX_WAIT_MS 30000

static bool node_name_valid(const char *name)
{
    size_t len = strlen(name);
    return len >= 1 && len <= 63 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") == len;
}

/* A restarted worker tries its tiers anew; until it knows, what worked before is taken to do so.
 * What did not may have been the reason for the restart: that is being tried. */
static void keep_known_tiers(struct sp_store *store, const char *node, json_t *tiers)
{
    struct sp_node_row *before = sp_store_node_get(store, node, NULL);
    g_autoptr(json_t) known =
        before ? sp_json_parse(before->tiers, strlen(before->tiers), NULL) : NULL;
    size_t i, j;
    json_t *tier, *old;
    json_array_foreach(tiers, i, tier)
    {
        if (!json_is_true(json_object_get(tier, "probing")))
            continue;
        json_array_foreach(known, j, old)
        {
            if (!json_is_true(json_object_get(old, "available")) ||
                json_is_true(json_object_get(old, "probing")) ||
                !json_equal(json_object_get(old, "tier"), json_object_get(tier, "tier")))
                continue;
            json_object_update(tier, old);
            if (json_is_true(json_object_get(tier, "save_memory")))
                json_object_del(tier, "probing");
        }
    }
    sp_node_row_free(before);
}

/* The templates of the node that nobody wants any more. An error is no reason to refuse the node.
 */
static json_t *deleted_templates(struct sp_store *store, json_t *templates)
{
    g_autoptr(GStrvBuilder) builder = g_strv_builder_new();
    json_t *item;
    size_t i;
    json_array_foreach(templates, i, item)
    {
        if (json_is_string(item) && sp_digest_valid(json_string_value(item)))
            g_strv_builder_add(builder, json_string_value(item));
    }
    g_auto(GStrv) digests = g_strv_builder_end(builder);
    g_auto(GStrv) deleted = sp_store_templates_deleted(store, digests, NULL);
    return sp_json_from_strv(deleted);
}

bool sp_api_worker_register(struct sp_api_call *call, GError **error)
{
    int64_t protocol;
    const char *name, *instance, *data_url;
    json_t *tiers, *templates;
    if (!sp_worker_integer(call->body, "protocol", true, &protocol, error))
        return false;
    if (protocol != PROTOCOL) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED,
                    "this server speaks worker protocol %d, not %d", PROTOCOL, (int)protocol);
        return false;
    }
    if (!sp_worker_text(call->body, "node", true, &name, error) ||
        !sp_worker_text(call->body, "instance", true, &instance, error) ||
        !sp_worker_text(call->body, "data_url", true, &data_url, error) ||
        !sp_worker_array(call->body, "tiers", &tiers, error) ||
        !sp_worker_array(call->body, "templates", &templates, error))
        return false;
    if (!node_name_valid(name)) {
        sp_error_set_field(error, "/node", "node must be 1 to 63 of a-z, 0-9, '.', '-'");
        return false;
    }
    if (!g_str_has_prefix(data_url, "http://") && !g_str_has_prefix(data_url, "https://")) {
        sp_error_set_field(error, "/data_url", "data_url must be a http or https URL");
        return false;
    }
    keep_known_tiers(call->api->store, name, tiers);
    g_autofree char *tiers_text = sp_json_dump(tiers);
    g_autofree char *templates_text = sp_json_dump(templates);
    json_t *pools = json_object_get(call->body, "pools");
    g_autofree char *pools_text = json_is_array(pools) ? sp_json_dump(pools) : NULL;
    struct sp_node_row node = {.name = (char *)name,
                               .instance = (char *)instance,
                               .data_url = (char *)data_url,
                               .tiers = tiers_text,
                               .templates = templates_text,
                               .pools = pools_text,
                               .lease_expires_at_ms = sp_time_now_ms() + LEASE_MS};
    if (!sp_store_node_register(call->api->store, &node, error))
        return false;
    json_t *answer = json_object();
    json_object_set_new(answer, "lease_ms", json_integer(LEASE_MS));
    json_object_set_new(answer, "deleted_templates",
                        deleted_templates(call->api->store, templates));
    sp_api_reply(call, 200, answer);
    return true;
}

/* A host name of the sandbox's own: its label, or the random end of its id. */
static json_t *hostname(const struct sp_sandbox_row *s)
{
    if (s->name)
        return json_string(s->name);
    g_autofree char *name = g_strconcat("space-", s->id + strlen(s->id) - 10, NULL);
    return json_string(name);
}

static json_t *sandbox_json(const struct sp_sandbox_row *s)
{
    json_t *o = json_object();
    json_object_set_new(o, "id", sp_json_text(s->id));
    json_object_set_new(o, "generation", json_integer(s->generation));
    json_object_set_new(o, "desired_state",
                        json_string(sp_desired_names[sp_sandbox_wire_desired(s)]));
    json_object_set_new(o, "was_running", json_boolean(s->started_at_ms != 0));
    json_object_set_new(o, "operation_id", sp_json_text(s->operation_id));
    json_object_set_new(o, "template_digest", sp_json_text(s->template_digest));
    json_object_set_new(o, "isolation", json_string(sp_isolation_names[s->isolation]));
    json_object_set_new(o, "hostname", hostname(s));
    if (s->user)
        json_object_set_new(o, "user", sp_json_text(s->user));
    json_object_set_new(o, "env", sp_render_parsed(s->env));
    json_t *r = json_object();
    json_object_set_new(r, "cpus", json_real(s->resources.cpus));
    json_object_set_new(r, "memory_mb", json_integer(s->resources.memory_mb));
    json_object_set_new(r, "disk_mb", json_integer(s->resources.disk_mb));
    json_object_set_new(r, "pids", json_integer(s->resources.pids));
    json_object_set_new(o, "resources", r);
    json_object_set_new(o, "memory", json_boolean(s->suspend_memory));
    if (s->saved_from)
        json_object_set_new(o, "saved_from", sp_json_text(s->saved_from));
    if (s->rollback_generation != 0) {
        json_t *rollback = json_object();
        json_object_set_new(rollback, "snapshot_id", sp_json_text(s->rollback_snapshot_id));
        json_object_set_new(rollback, "generation", json_integer(s->rollback_generation));
        json_object_set_new(o, "rollback", rollback);
    }
    return o;
}

static json_t *snapshot_json(const struct sp_snapshot_row *n)
{
    json_t *o = json_object();
    json_object_set_new(o, "id", sp_json_text(n->id));
    json_object_set_new(o, "sandbox_id", sp_json_text(n->sandbox_id));
    json_object_set_new(o, "operation_id",
                        sp_json_text(n->wanted ? n->operation_id : n->delete_operation_id));
    json_object_set_new(o, "desired", json_string(n->wanted ? "ready" : "deleted"));
    json_object_set_new(o, "memory", json_boolean(n->memory));
    json_object_set_new(o, "durable", json_boolean(n->durable));
    return o;
}

static json_t *build_json(const struct sp_build_row *b)
{
    json_t *o = json_object();
    json_object_set_new(o, "id", sp_json_text(b->id));
    json_object_set_new(o, "name", sp_json_text(b->name));
    json_object_set_new(o, "tag", sp_json_text(b->tag));
    json_object_set_new(o, "recipe", sp_render_parsed(b->recipe));
    json_object_set_new(o, "no_cache", json_boolean(b->no_cache));
    json_object_set_new(o, "operation_id", sp_json_text(b->operation_id));
    return o;
}

static json_t *set_json(const struct sp_desired_set *set)
{
    json_t *sandboxes = json_array(), *builds = json_array(), *snapshots = json_array();
    for (unsigned i = 0; i < set->sandboxes->len; i++)
        json_array_append_new(sandboxes, sandbox_json(set->sandboxes->pdata[i]));
    for (unsigned i = 0; i < set->builds->len; i++)
        json_array_append_new(builds, build_json(set->builds->pdata[i]));
    for (unsigned i = 0; i < set->snapshots->len; i++)
        json_array_append_new(snapshots, snapshot_json(set->snapshots->pdata[i]));
    json_t *o = json_object();
    json_object_set_new(o, "revision", json_integer(set->revision));
    json_object_set_new(o, "sandboxes", sandboxes);
    json_object_set_new(o, "builds", builds);
    json_object_set_new(o, "snapshots", snapshots);
    return o;
}

static bool query_number(struct sp_api_call *call, const char *name, int64_t max, int64_t *ret,
                         GError **error)
{
    const char *text = sp_http_query(call->http, name);
    guint64 value = 0;
    if (text && !g_ascii_string_to_unsigned(text, 10, 0, (guint64)max, &value, NULL)) {
        sp_error_set_field(error, name, "%s must be a number from 0 to %" G_GINT64_FORMAT, name,
                           max);
        return false;
    }
    *ret = (int64_t)value;
    return true;
}

bool sp_api_worker_desired(struct sp_api_call *call, GError **error)
{
    struct sp_store *store = call->api->store;
    const char *node = sp_http_query(call->http, "node");
    int64_t after, wait_ms;
    if (!node || !node_name_valid(node)) {
        sp_error_set_field(error, "node", "the query parameter node is missing or malformed");
        return false;
    }
    if (!query_number(call, "after", G_MAXINT64, &after, error) ||
        !query_number(call, "wait_ms", MAX_WAIT_MS, &wait_ms, error))
        return false;
    g_autofree char *topic = sp_store_node_topic(node);
    int64_t deadline = sp_time_monotonic_ms() + wait_ms;
    for (;;) {
        struct sp_desired_set set;
        uint64_t ticket = sp_store_ticket(store, topic);
        if (!sp_store_desired(store, node, after, &set, error))
            return false;
        if (after > set.revision) { /* another database than the one that gave it: start over */
            after = 0;
            sp_desired_set_clear(&set);
            continue;
        }
        int64_t now = sp_time_monotonic_ms();
        if (set.sandboxes->len > 0 || set.builds->len > 0 || set.snapshots->len > 0 ||
            now >= deadline || g_atomic_int_get(&call->api->stopping) ||
            sp_http_client_gone(call->http)) {
            sp_api_reply(call, 200, set_json(&set));
            sp_desired_set_clear(&set);
            return true;
        }
        sp_desired_set_clear(&set);
        sp_store_wait(store, topic, ticket, MIN(deadline, now + 1000));
    }
}

static bool read_ids(json_t *body, GStrvBuilder *ids, GError **error)
{
    json_t *list, *item;
    size_t i;
    if (!sp_worker_array(body, "ids", &list, error))
        return false;
    json_array_foreach(list, i, item)
    {
        const char *id = json_string_value(item);
        if (!id || !sp_id_valid(id, "sbx")) {
            sp_error_set_field(error, "/ids", "ids must be ids of sandboxes");
            return false;
        }
        g_strv_builder_add(ids, id);
    }
    return true;
}

bool sp_api_worker_desired_of(struct sp_api_call *call, GError **error)
{
    const char *node;
    g_autoptr(GStrvBuilder) builder = g_strv_builder_new();
    if (!sp_worker_text(call->body, "node", true, &node, error) ||
        !read_ids(call->body, builder, error))
        return false;
    g_auto(GStrv) ids = g_strv_builder_end(builder);
    g_autoptr(GPtrArray) rows = sp_store_desired_of(call->api->store, node, ids, error);
    if (!rows)
        return false;
    json_t *list = json_array();
    unsigned next = 0; /* rows are in the order of ids, without the unknown ones */
    for (char **id = ids; *id; id++) {
        const struct sp_sandbox_row *s = next < rows->len ? rows->pdata[next] : NULL;
        json_t *o;
        if (s && strcmp(s->id, *id) == 0) {
            o = sandbox_json(s);
            next++;
        } else {
            o = json_object();
            json_object_set_new(o, "id", json_string(*id));
            json_object_set_new(o, "unknown", json_true());
        }
        json_array_append_new(list, o);
    }
    json_t *answer = json_object();
    json_object_set_new(answer, "sandboxes", list);
    sp_api_reply(call, 200, answer);
    return true;
}

bool sp_api_worker_session_get(struct sp_api_call *call, GError **error)
{
    g_autoptr(GArray) tokens = NULL;
    struct sp_session_row *s =
        sp_store_session_for_worker(call->api->store, sp_http_param(call->http, 0), &tokens, error);
    if (!s)
        return false;
    json_t *list = json_array();
    for (unsigned i = 0; i < tokens->len; i++) {
        const struct sp_session_token *token = &g_array_index(tokens, struct sp_session_token, i);
        json_t *o = json_object();
        json_object_set_new(o, "sha256", json_string(token->hash));
        json_object_set_new(o, "expires_at_ms", json_integer(token->expires_at_ms));
        json_array_append_new(list, o);
    }
    json_t *answer = json_object();
    json_object_set_new(answer, "id", sp_json_text(s->id));
    json_object_set_new(answer, "sandbox_id", sp_json_text(s->sandbox_id));
    json_object_set_new(answer, "process_id", sp_json_text(s->process_id));
    json_object_set_new(answer, "state", json_string(sp_session_state_names[s->state]));
    json_object_set_new(answer, "spec", sp_render_parsed(s->spec));
    json_object_set_new(answer, "tokens", list);
    sp_api_reply(call, 200, answer);
    sp_session_row_free(s);
    return true;
}
