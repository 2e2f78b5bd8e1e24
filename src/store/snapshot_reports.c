/*
 * What becomes of snapshots: what their workers say, and what follows from it for the sandboxes
 * that wait for one. A late or repeated report changes nothing.
 */
#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "store/internal.h"

static GPtrArray *waiting_for(struct sp_db_tx *tx, const char *snapshot_id, GError **error)
{
    return sp_sandbox_rows_read(sp_db_query(tx, error,
                                            SP_SANDBOX_SELECT
                                            "WHERE s.saved_from = $1 AND s.state = 'creating'"
                                            " AND s.desired_state <> 'deleted'",
                                            "t", snapshot_id),
                                error);
}

bool sp_tx_snapshot_fail(struct sp_db_tx *tx, const struct sp_snapshot_row *n, const char *code,
                         const char *why, GPtrArray *topics, GError **error)
{
    int64_t revision;
    if (!sp_tx_bump_revision(tx, &revision, error) ||
        !sp_db_run(tx, NULL, error,
                   "UPDATE snapshots SET state = 'failed', wanted = 'deleted', error_code = $2,"
                   " error_message = $3, revision = $4 WHERE id = $1",
                   "ttti", n->id, code, why, revision) ||
        !sp_tx_operation_end(tx, n->operation_id, code, why, NULL, error))
        return false;
    sp_topics_add(topics, n->operation_id);
    sp_topics_add_node(topics, n->node);
    g_autoptr(GPtrArray) waiting = waiting_for(tx, n->id, error);
    for (unsigned i = 0; waiting && i < waiting->len; i++) {
        if (!sp_tx_sandbox_fail(tx, waiting->pdata[i], code, why, why, NULL, topics, error))
            return false;
    }
    return waiting != NULL;
}

bool sp_tx_snapshots_abandon(struct sp_db_tx *tx, const char *sandbox_id, const char *code,
                             const char *why, GPtrArray *topics, GError **error)
{
    g_autoptr(GPtrArray) list = sp_snapshot_rows_read(
        sp_db_query(tx, error,
                    SP_SNAPSHOT_SELECT "WHERE n.sandbox_id = $1 AND n.state = 'creating'", "t",
                    sandbox_id),
        error);
    for (unsigned i = 0; list && i < list->len; i++) {
        if (!sp_tx_snapshot_fail(tx, list->pdata[i], code, why, topics, error))
            return false;
    }
    return list != NULL;
}

bool sp_tx_snapshots_release(struct sp_db_tx *tx, GPtrArray *topics, GError **error)
{
    g_autoptr(GPtrArray) list = sp_snapshot_rows_read(
        sp_db_query(tx, error,
                    SP_SNAPSHOT_SELECT
                    "WHERE n.durable = 0 AND n.state = 'ready' AND NOT EXISTS (SELECT 1 FROM"
                    " sandboxes s WHERE s.saved_from = n.id AND s.state IN ('creating',"
                    " 'deleting'))",
                    ""),
        error);
    for (unsigned i = 0; list && i < list->len; i++) {
        const struct sp_snapshot_row *n = list->pdata[i];
        int64_t revision;
        if (!sp_tx_bump_revision(tx, &revision, error) ||
            !sp_db_run(tx, NULL, error,
                       "UPDATE snapshots SET state = 'deleting', wanted = 'deleted', revision = $2"
                       " WHERE id = $1",
                       "ti", n->id, revision))
            return false;
        sp_topics_add_node(topics, n->node);
    }
    return list != NULL;
}

/* The sandboxes that wait for it may be made now; what the taking took is part of their making. */
static bool let_go(struct sp_db_tx *tx, const struct sp_snapshot_row *n, const char *steps,
                   GPtrArray *topics, GError **error)
{
    g_autoptr(GPtrArray) waiting = waiting_for(tx, n->id, error);
    for (unsigned i = 0; waiting && i < waiting->len; i++) {
        const struct sp_sandbox_row *s = waiting->pdata[i];
        int64_t revision;
        if (!sp_tx_bump_revision(tx, &revision, error) ||
            !sp_db_run(tx, NULL, error, "UPDATE sandboxes SET revision = $2 WHERE id = $1", "ti",
                       s->id, revision) ||
            !sp_db_run(tx, NULL, error,
                       "UPDATE operations SET steps = COALESCE($2, steps), state = 'running',"
                       " started_at = $3 WHERE id = $1 AND state = 'pending'",
                       "tti", s->operation_id, steps, sp_time_now_ms()))
            return false;
    }
    sp_topics_add_node(topics, n->node);
    return waiting != NULL;
}

/* Its node has (again) what it was to remove: it is told once more. */
static bool tell_again(struct sp_db_tx *tx, const struct sp_snapshot_row *n, GPtrArray *topics,
                       GError **error)
{
    int64_t revision;
    sp_topics_add_node(topics, n->node);
    return sp_tx_bump_revision(tx, &revision, error) &&
           sp_db_run(tx, NULL, error,
                     "UPDATE snapshots SET deleted_at = 0, revision = $2 WHERE id = $1", "ti",
                     n->id, revision);
}

static bool apply_ready(struct sp_db_tx *tx, const struct sp_snapshot_row *n,
                        const struct sp_snapshot_report *r, GPtrArray *topics, GError **error)
{
    if (!n->wanted)
        return tell_again(tx, n, topics, error);
    if (n->state != SP_SNAPSHOT_CREATING)
        return true;
    bool memory = r->memory_set ? r->memory : n->memory;
    if (!sp_db_run(tx, NULL, error,
                   "UPDATE snapshots SET state = 'ready', ready_at = $2, size_bytes = $3,"
                   " memory = $4 WHERE id = $1",
                   "tiii", n->id, sp_time_now_ms(), r->size_bytes, (int64_t)memory))
        return false;
    if (!n->durable)
        return let_go(tx, n, r->steps, topics, error);
    sp_topics_add(topics, n->operation_id);
    return sp_tx_operation_end(tx, n->operation_id, NULL, NULL, r->steps, error) &&
           sp_db_run(tx, NULL, error, "UPDATE sandboxes SET head_snapshot_id = $2 WHERE id = $1",
                     "tt", n->sandbox_id, n->id);
}

/* Nothing of it is left. What the row held of the user's goes now, the row itself in a day. */
static bool finish(struct sp_db_tx *tx, const struct sp_snapshot_row *n, const char *steps,
                   GPtrArray *topics, GError **error)
{
    if (!sp_db_run(tx, NULL, error,
                   "UPDATE snapshots SET deleted_at = $2, env = '{}',"
                   " state = CASE WHEN state = 'deleting' THEN 'deleted' ELSE state END"
                   " WHERE id = $1 AND deleted_at = 0",
                   "ti", n->id, sp_time_now_ms()))
        return false;
    if (!n->delete_operation_id)
        return true;
    sp_topics_add(topics, n->delete_operation_id);
    return sp_tx_operation_end(tx, n->delete_operation_id, NULL, NULL, steps, error);
}

static bool apply(struct sp_db_tx *tx, const struct sp_snapshot_row *n,
                  const struct sp_snapshot_report *r, GPtrArray *topics, GError **error)
{
    switch (r->state) {
    case SP_SNAPSHOT_READY:
        return apply_ready(tx, n, r, topics, error);
    case SP_SNAPSHOT_FAILED:
        if (n->state == SP_SNAPSHOT_CREATING &&
            !sp_tx_snapshot_fail(tx, n, r->error_code ? r->error_code : "internal",
                                 r->error_message ? r->error_message
                                                  : "the worker reported no reason",
                                 topics, error))
            return false;
        /* one that was ready, or cannot be removed now, does not vanish by this word */
        return (n->state != SP_SNAPSHOT_CREATING && n->state != SP_SNAPSHOT_FAILED) ||
               finish(tx, n, NULL, topics, error);
    case SP_SNAPSHOT_DELETED:
        return n->wanted || finish(tx, n, r->steps, topics, error);
    default:
        return true;
    }
}

bool sp_store_snapshot_report(struct sp_store *store, const char *node,
                              const struct sp_snapshot_report *reports, unsigned n_reports,
                              GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    g_autoptr(GPtrArray) topics = sp_topics_new();
    if (!tx)
        return false;
    for (unsigned i = 0; i < n_reports; i++) {
        struct sp_snapshot_row *n = NULL;
        if (!sp_tx_snapshot(tx, reports[i].id, &n, error))
            return false;
        bool ok = !n || strcmp(n->node, node) != 0 || apply(tx, n, &reports[i], topics, error);
        sp_snapshot_row_free(n);
        if (!ok)
            return false;
    }
    if (!sp_tx_snapshots_release(tx, topics, error) || !sp_db_commit_auto(&tx, error))
        return false;
    sp_topics_add(topics, SP_TOPIC_CONTROLLER);
    sp_topics_publish(store, topics);
    return true;
}
