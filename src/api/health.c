/* Whether the server lives and is of use, its version, its numbers, its nodes. */
#include "api/handlers.h"
#include "api/render.h"
#include "base/time.h"
#include "control/placement.h"

#define WORKER_PROTOCOL 1

bool sp_api_healthz(struct sp_api_call *call, GError **error)
{
    json_t *answer = json_object();
    json_object_set_new(answer, "status", json_string("ok"));
    sp_api_reply(call, 200, answer);
    return true;
}

/* Ready: the database answers and a worker is there to make sandboxes. */
bool sp_api_readyz(struct sp_api_call *call, GError **error)
{
    g_autoptr(GPtrArray) nodes = sp_store_node_list(call->api->store, NULL);
    bool worker = nodes && sp_place_any(nodes, sp_time_now_ms());
    json_t *answer = json_object();
    json_object_set_new(answer, "ready", json_boolean(worker));
    json_object_set_new(answer, "store", json_boolean(nodes != NULL));
    json_object_set_new(answer, "worker", json_boolean(worker));
    sp_api_reply(call, worker ? 200 : 503, answer);
    return true;
}

bool sp_api_version(struct sp_api_call *call, GError **error)
{
    json_t *answer = json_object();
    json_object_set_new(answer, "version", json_string(SPACE_VERSION));
    json_object_set_new(answer, "api", json_string("v1"));
    json_object_set_new(answer, "worker_protocol", json_integer(WORKER_PROTOCOL));
    sp_api_reply(call, 200, answer);
    return true;
}

static bool write_sandboxes(struct sp_api_call *call, GString *out, GError **error)
{
    int64_t counts[SP_N_STATES];
    if (!sp_store_sandbox_counts(call->api->store, counts, error))
        return false;
    g_string_append(out, "# TYPE space_sandboxes gauge\n");
    for (unsigned i = 0; i < SP_N_STATES; i++) {
        if (i != SP_STATE_DELETED)
            g_string_append_printf(out, "space_sandboxes{state=\"%s\"} %" G_GINT64_FORMAT "\n",
                                   sp_state_names[i], counts[i]);
    }
    return true;
}

static bool write_snapshots(struct sp_api_call *call, GString *out, GError **error)
{
    int64_t counts[SP_N_SNAPSHOT_STATES];
    if (!sp_store_snapshot_counts(call->api->store, counts, error))
        return false;
    g_string_append(out, "# TYPE space_snapshots gauge\n");
    for (unsigned i = 0; i < SP_N_SNAPSHOT_STATES; i++) {
        if (i != SP_SNAPSHOT_DELETED)
            g_string_append_printf(out, "space_snapshots{state=\"%s\"} %" G_GINT64_FORMAT "\n",
                                   sp_snapshot_state_names[i], counts[i]);
    }
    return true;
}

/* What a pool is of, as labels; NULL when the worker's word is malformed. */
static char *pool_labels(const struct sp_node_row *node, json_t *pool)
{
    const char *digest = json_string_value(json_object_get(pool, "template_digest"));
    const char *isolation = json_string_value(json_object_get(pool, "isolation"));
    enum sp_isolation tier;
    char cpus[G_ASCII_DTOSTR_BUF_SIZE];
    if (!digest || !sp_digest_valid(digest) || !sp_isolation_parse(isolation, &tier))
        return NULL;
    g_ascii_formatd(cpus, sizeof cpus, "%g", json_number_value(json_object_get(pool, "cpus")));
    return g_strdup_printf("node=\"%s\",template_digest=\"%s\",isolation=\"%s\",cpus=\"%s\","
                           "memory_mb=\"%" JSON_INTEGER_FORMAT "\",disk_mb=\"%" JSON_INTEGER_FORMAT
                           "\",pids=\"%" JSON_INTEGER_FORMAT "\"",
                           node->name, digest, isolation, cpus,
                           json_integer_value(json_object_get(pool, "memory_mb")),
                           json_integer_value(json_object_get(pool, "disk_mb")),
                           json_integer_value(json_object_get(pool, "pids")));
}

static void write_pools(GPtrArray *nodes, GString *out)
{
    static const struct {
        const char *member, *name, *type;
    } rows[] = {
        {"ready", "space_pool_ready", "gauge"},
        {"filling", "space_pool_filling", "gauge"},
        {"low", "space_pool_low", "gauge"},
        {"high", "space_pool_high", "gauge"},
        {"hits", "space_pool_hits_total", "counter"},
        {"misses", "space_pool_misses_total", "counter"},
    };
    for (unsigned r = 0; r < G_N_ELEMENTS(rows); r++) {
        g_string_append_printf(out, "# TYPE %s %s\n", rows[r].name, rows[r].type);
        for (unsigned i = 0; i < nodes->len; i++) {
            const struct sp_node_row *node = nodes->pdata[i];
            g_autoptr(json_t) pools = sp_render_parsed(node->pools);
            json_t *pool;
            size_t p;
            json_array_foreach(pools, p, pool)
            {
                g_autofree char *labels = pool_labels(node, pool);
                if (labels && sp_node_ready(node, sp_time_now_ms()))
                    g_string_append_printf(
                        out, "%s{%s} %" JSON_INTEGER_FORMAT "\n", rows[r].name, labels,
                        json_integer_value(json_object_get(pool, rows[r].member)));
            }
        }
    }
}

bool sp_api_metrics(struct sp_api_call *call, GError **error)
{
    g_autoptr(GString) out = g_string_new(NULL);
    g_autoptr(GPtrArray) nodes = sp_store_node_list(call->api->store, error);
    if (!nodes || !write_sandboxes(call, out, error) || !write_snapshots(call, out, error))
        return false;
    g_string_append(out, "# TYPE space_node_ready gauge\n");
    for (unsigned i = 0; i < nodes->len; i++) {
        const struct sp_node_row *node = nodes->pdata[i];
        g_string_append_printf(out, "space_node_ready{node=\"%s\"} %d\n", node->name,
                               sp_node_ready(node, sp_time_now_ms()));
    }
    write_pools(nodes, out);
    sp_metrics_write(call->api->metrics, out);
    sp_api_reply_bytes(call, 200, "text/plain; version=0.0.4", out->str, out->len);
    return true;
}

bool sp_api_node_list(struct sp_api_call *call, GError **error)
{
    g_autoptr(GPtrArray) nodes = sp_store_node_list(call->api->store, error);
    if (!nodes)
        return false;
    json_t *items = json_array();
    for (unsigned i = 0; i < nodes->len; i++)
        json_array_append_new(items, sp_render_node(nodes->pdata[i], sp_time_now_ms()));
    json_t *list = json_object();
    json_object_set_new(list, "items", items);
    json_object_set_new(list, "next_cursor", json_null());
    sp_api_reply(call, 200, list);
    return true;
}
