/* Housekeeping by queries: what is due is a question to the database, never a list in memory. */
#include "base/error.h"
#include "base/time.h"
#include "model/idempotency.h"
#include "store/internal.h"

#define MINUTE_MS (60 * (int64_t)1000)
#define HOUR_MS (60 * MINUTE_MS)
#define KEEP_ROWS_MS (24 * HOUR_MS)
#define KEEP_HISTORY_MS (7 * KEEP_ROWS_MS)
#define LONGEST_MS HOUR_MS

GPtrArray *sp_tx_ids(struct sp_db_tx *tx, GError **error, const char *sql, int64_t value)
{
    SP_DB_ROWS_AUTO *rows = sp_db_query(tx, error, sql, "i", value);
    if (!rows)
        return NULL;
    g_autoptr(GPtrArray) ids = g_ptr_array_new_with_free_func(g_free);
    int got;
    while ((got = sp_db_next(rows, error)) > 0)
        g_ptr_array_add(ids, g_strdup(sp_db_text(rows, 0)));
    return got < 0 ? NULL : g_steal_pointer(&ids);
}

/* max_lifetime: whatever the sandbox does. */
static bool delete_expired(struct sp_db_tx *tx, int64_t now, GPtrArray *topics, int64_t *n,
                           GError **error)
{
    g_autoptr(GPtrArray) ids = sp_tx_ids(
        tx, error,
        "SELECT id FROM sandboxes WHERE desired_state <> 'deleted' AND max_lifetime_ms > 0"
        " AND created_at + max_lifetime_ms <= $1",
        now);
    for (unsigned i = 0; ids && i < ids->len; i++) {
        struct sp_sandbox_row *s = NULL;
        char operation_id[SP_ID_MAX];
        if (!sp_tx_sandbox(tx, ids->pdata[i], &s, error))
            return false;
        bool ok =
            s && sp_tx_sandbox_delete(tx, s, "max_lifetime is over", operation_id, topics, error);
        sp_sandbox_row_free(s);
        if (!ok)
            return false;
        ++*n;
    }
    return ids != NULL;
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
        {"DELETE FROM sandboxes WHERE deleted_at > 0 AND deleted_at <= $1", KEEP_ROWS_MS},
        {"DELETE FROM snapshots WHERE deleted_at > 0 AND deleted_at <= $1", KEEP_ROWS_MS},
        {"DELETE FROM operations WHERE finished_at > 0 AND finished_at <= $1 AND"
         " NOT EXISTS (SELECT 1 FROM sandboxes s WHERE s.id = operations.sandbox_id) AND"
         " NOT EXISTS (SELECT 1 FROM builds b WHERE b.id = operations.build_id"
         " AND b.state = 'succeeded')",
         2 * KEEP_ROWS_MS},
        /* of a sandbox that lives on: else one that is used for months would fill the database */
        {"DELETE FROM operations WHERE finished_at > 0 AND finished_at <= $1 AND"
         " sandbox_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM sandboxes s"
         " WHERE s.id = operations.sandbox_id AND s.operation_id = operations.id)",
         KEEP_HISTORY_MS},
        {"DELETE FROM sessions WHERE ended_at > 0 AND ended_at <= $1", KEEP_HISTORY_MS},
        {"DELETE FROM sessions WHERE state = 'pending' AND created_at <= $1", KEEP_HISTORY_MS},
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

/* The earliest time at which one of the rules has something to do. */
static bool next_due(struct sp_db_tx *tx, int64_t now, int64_t *ret, GError **error)
{
    int64_t overdue, idle;
    if (!sp_sweep_overdue_next(tx, &overdue, error) || !sp_sweep_idle_next(tx, now, &idle, error))
        return false;
    SP_DB_ROWS_AUTO *rows = sp_db_query(tx, error,
                                        "SELECT MIN(created_at + max_lifetime_ms) FROM sandboxes"
                                        " WHERE desired_state <> 'deleted' AND max_lifetime_ms > 0",
                                        "");
    if (!rows || sp_db_next(rows, error) != 1)
        return false;
    int64_t due = MIN(overdue, idle);
    if (sp_db_text(rows, 0))
        due = MIN(due, sp_db_int(rows, 0));
    /* A row that could not be handled now must not make the controller spin. */
    *ret = CLAMP(due, now + 1000, now + LONGEST_MS);
    return true;
}

bool sp_store_sweep(struct sp_store *store, int64_t now_ms, struct sp_sweep_result *ret,
                    GError **error)
{
    g_autoptr(GPtrArray) topics = sp_topics_new();
    struct sp_sweep_result result = {0};
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    if (!tx || !sp_tx_lease_check(store, tx, SP_LEASE_CONTROLLER, error) ||
        !sp_sweep_overdue(tx, now_ms, topics, &result.timed_out, error) ||
        !delete_expired(tx, now_ms, topics, &result.expired, error) ||
        !sp_sweep_idle(tx, now_ms, topics, &result.idle, error) ||
        !sp_tx_snapshots_release(tx, topics, error) || !forget(tx, now_ms, &result.purged, error) ||
        !next_due(tx, now_ms, &result.next_at_ms, error) || !sp_db_commit_auto(&tx, error))
        return false;
    sp_topics_publish(store, topics);
    *ret = result;
    return true;
}
