/* Housekeeping by queries: what is due is a question to the database, never a list in memory. */
#include "base/error.h"
#include "base/time.h"
#include "model/idempotency.h"
#include "store/internal.h"

#define MINUTE_MS (60 * (int64_t)1000)
#define HOUR_MS (60 * MINUTE_MS)
#define CREATE_LIMIT_MS (5 * MINUTE_MS)
#define DELETE_LIMIT_MS (60 * MINUTE_MS)
#define BUILD_LIMIT_MS (120 * MINUTE_MS)
#define KEEP_ROWS_MS (24 * HOUR_MS)
#define LONGEST_MS HOUR_MS

/* The first column of all rows; NULL on failure. */
static GPtrArray *ids_of(struct sp_db_tx *tx, GError **error, const char *sql, int64_t a, int64_t b,
                         int64_t c)
{
    SP_DB_ROWS_AUTO *rows = sp_db_query(tx, error, sql, "iii", a, b, c);
    if (!rows)
        return NULL;
    g_autoptr(GPtrArray) ids = g_ptr_array_new_with_free_func(g_free);
    int got;
    while ((got = sp_db_next(rows, error)) > 0)
        g_ptr_array_add(ids, g_strdup(sp_db_text(rows, 0)));
    return got < 0 ? NULL : g_steal_pointer(&ids);
}

/* A create that no worker has finished: the sandbox has failed, and its worker is told to remove
 * what it may have made of it. */
static bool fail_creates(struct sp_db_tx *tx, int64_t now, GPtrArray *topics, int64_t *n,
                         GError **error)
{
    g_autoptr(GPtrArray) ids = ids_of(tx, error,
                                      "SELECT sandbox_id FROM operations WHERE kind = 'create' AND "
                                      "state IN ('pending', 'running')"
                                      " AND created_at <= $1",
                                      now - CREATE_LIMIT_MS, 0, 0);
    for (unsigned i = 0; ids && i < ids->len; i++) {
        struct sp_sandbox_row *s = NULL;
        int64_t revision;
        if (!sp_tx_sandbox(tx, ids->pdata[i], &s, error))
            return false;
        if (!s)
            continue;
        const char *why = "the worker did not finish it within 5 minutes";
        bool ok = sp_tx_bump_revision(tx, &revision, error) &&
                  sp_db_run(tx, NULL, error,
                            "UPDATE sandboxes SET state = 'failed', state_reason = $2,"
                            " generation = generation + 1, revision = $3 WHERE id = $1",
                            "tti", s->id, why, revision) &&
                  sp_tx_operation_end(tx, s->operation_id, "unavailable", why, NULL, error);
        g_ptr_array_add(topics, g_strdup(s->operation_id));
        g_ptr_array_add(topics, sp_store_node_topic(s->node));
        sp_sandbox_row_free(s);
        if (!ok)
            return false;
        ++*n;
    }
    return ids != NULL;
}

/* A delete stays wanted; only its operation does not stay open for ever. */
static bool fail_others(struct sp_db_tx *tx, int64_t now, GPtrArray *topics, int64_t *n,
                        GError **error)
{
    g_autoptr(GPtrArray) ids =
        ids_of(tx, error,
               "SELECT id FROM operations WHERE state IN ('pending', 'running') AND"
               " ((kind = 'delete' AND created_at <= $1) OR"
               " (kind = 'template_build' AND created_at <= $2))",
               now - DELETE_LIMIT_MS, now - BUILD_LIMIT_MS, 0);
    for (unsigned i = 0; ids && i < ids->len; i++) {
        const char *id = ids->pdata[i];
        if (!sp_tx_operation_end(tx, id, "unavailable", "the worker has not finished it in time",
                                 NULL, error) ||
            !sp_db_run(tx, NULL, error,
                       "UPDATE builds SET state = 'failed', finished_at = $2"
                       " WHERE operation_id = $1",
                       "ti", id, now))
            return false;
        g_ptr_array_add(topics, g_strdup(id));
        ++*n;
    }
    return ids != NULL;
}

static bool delete_each(struct sp_db_tx *tx, GPtrArray *ids, const char *reason, GPtrArray *topics,
                        int64_t *n, GError **error)
{
    for (unsigned i = 0; i < ids->len; i++) {
        struct sp_sandbox_row *s = NULL;
        char operation_id[SP_ID_MAX];
        if (!sp_tx_sandbox(tx, ids->pdata[i], &s, error))
            return false;
        bool ok = s && sp_tx_sandbox_delete(tx, s, reason, operation_id, error);
        if (ok) {
            g_ptr_array_add(topics, g_strdup(s->operation_id));
            g_ptr_array_add(topics, sp_store_node_topic(s->node));
            ++*n;
        }
        sp_sandbox_row_free(s);
        if (!ok)
            return false;
    }
    return true;
}

static bool delete_expired(struct sp_db_tx *tx, int64_t now, GPtrArray *topics, int64_t *n,
                           GError **error)
{
    g_autoptr(GPtrArray) old =
        ids_of(tx, error,
               "SELECT id FROM sandboxes WHERE desired_state <> 'deleted' AND max_lifetime_ms > 0"
               " AND created_at + max_lifetime_ms <= $1",
               now, 0, 0);
    if (!old || !delete_each(tx, old, "max_lifetime is over", topics, n, error))
        return false;
    g_autoptr(GPtrArray) idle =
        ids_of(tx, error,
               "SELECT id FROM sandboxes WHERE desired_state <> 'deleted' AND state = 'running'"
               " AND on_idle = 'delete' AND last_active_at + idle_timeout_ms <= $1 AND NOT EXISTS"
               " (SELECT 1 FROM sessions x WHERE x.sandbox_id = sandboxes.id"
               " AND x.state = 'running')",
               now, 0, 0);
    return idle && delete_each(tx, idle, "idle_timeout is over", topics, n, error);
}

static bool forget(struct sp_db_tx *tx, int64_t now, int64_t *ret_purged, GError **error)
{
    int64_t purged = 0, changed = 0;
    static const struct {
        const char *sql;
        int64_t age_ms;
    } steps[] = {
        {"DELETE FROM idempotency WHERE created_at <= $1", SP_IDEMPOTENCY_KEEP_MS},
        {"DELETE FROM session_tokens WHERE expires_at <= $1", 0},
        /* sessions, tokens and metadata go with their sandbox */
        {"DELETE FROM sandboxes WHERE state = 'deleted' AND deleted_at <= $1", KEEP_ROWS_MS},
        {"DELETE FROM operations WHERE finished_at > 0 AND finished_at <= $1 AND"
         " (sandbox_id IS NULL OR sandbox_id NOT IN (SELECT id FROM sandboxes)) AND"
         " (build_id IS NULL OR build_id NOT IN (SELECT id FROM builds WHERE state = 'succeeded'))",
         2 * KEEP_ROWS_MS},
        {"DELETE FROM builds WHERE state = 'failed' AND finished_at <= $1", 7 * KEEP_ROWS_MS},
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(steps); i++) {
        if (!sp_db_run(tx, &changed, error, steps[i].sql, "i", now - steps[i].age_ms))
            return false;
        purged += changed;
    }
    *ret_purged = purged;
    return true;
}

/* The earliest time at which one of the rules above has something to do. */
static bool next_due(struct sp_db_tx *tx, int64_t now, int64_t *ret, GError **error)
{
    SP_DB_ROWS_AUTO *rows =
        sp_db_query(tx, error,
                    "SELECT MIN(due) FROM ("
                    "SELECT MIN(created_at) + $1 AS due FROM operations"
                    " WHERE kind = 'create' AND state IN ('pending', 'running') UNION ALL "
                    "SELECT MIN(created_at) + $2 FROM operations"
                    " WHERE kind = 'delete' AND state IN ('pending', 'running') UNION ALL "
                    "SELECT MIN(created_at) + $3 FROM operations"
                    " WHERE kind = 'template_build' AND state IN ('pending', 'running') UNION ALL "
                    "SELECT MIN(created_at + max_lifetime_ms) FROM sandboxes"
                    " WHERE desired_state <> 'deleted' AND max_lifetime_ms > 0 UNION ALL "
                    "SELECT MIN(last_active_at + idle_timeout_ms) FROM sandboxes"
                    " WHERE desired_state <> 'deleted' AND state = 'running' AND"
                    " on_idle = 'delete' AND last_active_at + idle_timeout_ms > $4"
                    ") AS times",
                    "iiii", CREATE_LIMIT_MS, DELETE_LIMIT_MS, BUILD_LIMIT_MS, now);
    if (!rows || sp_db_next(rows, error) != 1)
        return false;
    int64_t due = sp_db_text(rows, 0) ? sp_db_int(rows, 0) : now + LONGEST_MS;
    /* A row that could not be handled now must not make the controller spin. */
    *ret = CLAMP(due, now + 1000, now + LONGEST_MS);
    return true;
}

bool sp_store_sweep(struct sp_store *store, int64_t now_ms, struct sp_sweep_result *ret,
                    GError **error)
{
    g_autoptr(GPtrArray) topics = g_ptr_array_new_with_free_func(g_free);
    struct sp_sweep_result result = {0};
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    if (!tx || !sp_tx_lease_check(store, tx, SP_LEASE_CONTROLLER, error) ||
        !fail_creates(tx, now_ms, topics, &result.timed_out, error) ||
        !fail_others(tx, now_ms, topics, &result.timed_out, error) ||
        !delete_expired(tx, now_ms, topics, &result.expired, error) ||
        !forget(tx, now_ms, &result.purged, error) ||
        !next_due(tx, now_ms, &result.next_at_ms, error) || !sp_db_commit_auto(&tx, error))
        return false;
    for (unsigned i = 0; i < topics->len; i++)
        sp_store_publish(store, topics->pdata[i]);
    *ret = result;
    return true;
}
