#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "store/internal.h"

#define SELECT                                                                                     \
    "SELECT name, instance, data_url, tiers, templates, registered_at, lease_expires_at,"          \
    " pools FROM nodes "

void sp_node_row_free(struct sp_node_row *node)
{
    if (!node)
        return;
    g_free(node->name);
    g_free(node->instance);
    g_free(node->data_url);
    g_free(node->tiers);
    g_free(node->templates);
    g_free(node->pools);
    g_free(node);
}

static struct sp_node_row *from_row(struct sp_db_rows *rows)
{
    struct sp_node_row *node = g_new0(struct sp_node_row, 1);
    node->name = g_strdup(sp_db_text(rows, 0));
    node->instance = g_strdup(sp_db_text(rows, 1));
    node->data_url = g_strdup(sp_db_text(rows, 2));
    node->tiers = g_strdup(sp_db_text(rows, 3));
    node->templates = g_strdup(sp_db_text(rows, 4));
    node->registered_at_ms = sp_db_int(rows, 5);
    node->lease_expires_at_ms = sp_db_int(rows, 6);
    node->pools = g_strdup(sp_db_text(rows, 7));
    return node;
}

static bool instance_changed(struct sp_db_tx *tx, const struct sp_node_row *node, bool *ret,
                             GError **error)
{
    SP_DB_ROWS_AUTO *rows =
        sp_db_query(tx, error, "SELECT instance FROM nodes WHERE name = $1", "t", node->name);
    int got = rows ? sp_db_next(rows, error) : -1;
    if (got < 0)
        return false;
    *ret = got > 0 && strcmp(sp_db_text(rows, 0), node->instance) != 0;
    return true;
}

/* Builds that were started by a worker process that is gone. */
static bool fail_running_builds(struct sp_db_tx *tx, const char *node, GPtrArray *topics,
                                GError **error)
{
    g_autoptr(GPtrArray) ids = g_ptr_array_new_with_free_func(g_free);
    {
        SP_DB_ROWS_AUTO *rows = sp_db_query(
            tx, error, "SELECT id, operation_id FROM builds WHERE node = $1 AND state = 'running'",
            "t", node);
        if (!rows)
            return false;
        int got;
        while ((got = sp_db_next(rows, error)) > 0) {
            g_ptr_array_add(ids, g_strdup(sp_db_text(rows, 0)));
            g_ptr_array_add(topics, g_strdup(sp_db_text(rows, 1)));
        }
        if (got < 0)
            return false;
    }
    for (unsigned i = 0; i < ids->len; i++) {
        if (!sp_tx_build_fail(tx, ids->pdata[i], topics->pdata[i], "unavailable",
                              "the worker restarted during the build", error))
            return false;
    }
    return true;
}

bool sp_store_node_register(struct sp_store *store, const struct sp_node_row *node, GError **error)
{
    g_autoptr(GPtrArray) topics = g_ptr_array_new_with_free_func(g_free);
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    bool restarted;
    if (!tx || !instance_changed(tx, node, &restarted, error))
        return false;
    if (restarted && !fail_running_builds(tx, node->name, topics, error))
        return false;
    if (!sp_db_run(tx, NULL, error,
                   "INSERT INTO nodes (name, instance, data_url, tiers, templates, registered_at,"
                   " lease_expires_at, pools) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
                   " ON CONFLICT (name) DO UPDATE SET instance = excluded.instance,"
                   " data_url = excluded.data_url, tiers = excluded.tiers,"
                   " templates = excluded.templates, lease_expires_at = excluded.lease_expires_at,"
                   " pools = excluded.pools",
                   "tttttiit", node->name, node->instance, node->data_url, node->tiers,
                   node->templates, sp_time_now_ms(), node->lease_expires_at_ms,
                   node->pools ? node->pools : "[]") ||
        !sp_db_commit_auto(&tx, error))
        return false;
    for (unsigned i = 0; i < topics->len; i++)
        sp_store_publish(store, topics->pdata[i]);
    return true;
}

GPtrArray *sp_store_node_list(struct sp_store *store, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    if (!tx)
        return NULL;
    SP_DB_ROWS_AUTO *rows = sp_db_query(tx, error, SELECT "ORDER BY name", "");
    if (!rows)
        return NULL;
    g_autoptr(GPtrArray) list = g_ptr_array_new_with_free_func((GDestroyNotify)sp_node_row_free);
    int got;
    while ((got = sp_db_next(rows, error)) > 0)
        g_ptr_array_add(list, from_row(rows));
    return got < 0 ? NULL : g_steal_pointer(&list);
}

struct sp_node_row *sp_store_node_get(struct sp_store *store, const char *name, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    if (!tx)
        return NULL;
    SP_DB_ROWS_AUTO *rows = sp_db_query(tx, error, SELECT "WHERE name = $1", "t", name);
    int got = rows ? sp_db_next(rows, error) : -1;
    if (got > 0)
        return from_row(rows);
    if (got == 0)
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no node %s", name);
    return NULL;
}
