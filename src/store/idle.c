/*
 * on_idle: what is not in use for its idle_timeout is suspended, paused or deleted. A query, so
 * that it holds across restarts of the server.
 *
 * Only a running sandbox can be idle: one that is paused or suspended stays as it is. In use is
 * what has a live session, what its worker has lately reported as attached to or above 5 % of a
 * core, and what an operation or a snapshot is under way for.
 */
#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "store/internal.h"

#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)

#define CANDIDATE                                                                                  \
    " FROM sandboxes WHERE state = 'running' AND desired_state = 'running' AND on_idle <> 'none' "
#define IN_USE_BY_ACTIVITY                                                                         \
    "(activity_at > $1 - " TEXT(SP_ACTIVITY_STALE_MS) " AND (attached > 0 OR cpu_milli > " TEXT(   \
        SP_BUSY_CPU_MILLI) "))"

/* Live processes are never ended for being idle: without a place for the memory it is a pause. */
static bool suspend_or_pause(struct sp_db_tx *tx, const struct sp_sandbox_row *s, bool suspend,
                             GPtrArray *topics, GError **error)
{
    char operation_id[SP_ID_MAX];
    g_autofree char *why = NULL;
    if (suspend && !sp_tx_no_memory(tx, s, &why, error))
        return false;
    struct sp_change_new change = {.change = suspend && !why ? SP_CHANGE_SUSPEND : SP_CHANGE_PAUSE,
                                   .memory = true};
    g_autofree char *reason =
        why ? g_strconcat(SP_IDLE_PAUSED, why, NULL) : g_strdup(SP_IDLE_REASON);
    return sp_tx_change(tx, s, &change, reason, operation_id, topics, error);
}

static bool act(struct sp_db_tx *tx, const struct sp_sandbox_row *s, GPtrArray *topics,
                GError **error)
{
    char operation_id[SP_ID_MAX];
    switch (s->on_idle) {
    case SP_ON_IDLE_DELETE:
        return sp_tx_sandbox_delete(tx, s, SP_IDLE_REASON, operation_id, topics, error);
    case SP_ON_IDLE_PAUSE:
        return suspend_or_pause(tx, s, false, topics, error);
    case SP_ON_IDLE_SUSPEND:
        return suspend_or_pause(tx, s, true, topics, error);
    default:
        return true;
    }
}

bool sp_sweep_idle(struct sp_db_tx *tx, int64_t now, GPtrArray *topics, int64_t *n, GError **error)
{
    g_autoptr(GPtrArray) ids =
        sp_tx_ids(tx, error,
                  "SELECT id" CANDIDATE "AND last_active_at + idle_timeout_ms <= $1"
                  " AND idle_not_before <= $1 AND NOT " IN_USE_BY_ACTIVITY
                  " AND NOT EXISTS (SELECT 1 FROM sessions x WHERE x.sandbox_id = sandboxes.id"
                  " AND x.state = 'running')"
                  " AND NOT EXISTS (SELECT 1 FROM operations o WHERE o.id = sandboxes.operation_id"
                  " AND o.state IN ('pending', 'running'))"
                  " AND NOT EXISTS (SELECT 1 FROM snapshots n WHERE n.sandbox_id = sandboxes.id"
                  " AND n.state = 'creating')",
                  now);
    for (unsigned i = 0; ids && i < ids->len; i++) {
        struct sp_sandbox_row *s = NULL;
        if (!sp_tx_sandbox(tx, ids->pdata[i], &s, error))
            return false;
        bool ok = !s || act(tx, s, topics, error);
        sp_sandbox_row_free(s);
        if (!ok)
            return false;
        ++*n;
    }
    return ids != NULL;
}

/* What is overdue and in use is looked at again when that ends: the end of a session, an operation
 * or a snapshot wakes the controller, and a worker's word runs out. */
bool sp_sweep_idle_next(struct sp_db_tx *tx, int64_t now, int64_t *ret, GError **error)
{
    SP_DB_ROWS_AUTO *rows = sp_db_query(
        tx, error,
        "SELECT MIN(due) FROM ("
        "SELECT MIN(CASE WHEN last_active_at + idle_timeout_ms > idle_not_before"
        " THEN last_active_at + idle_timeout_ms ELSE idle_not_before END) AS due" CANDIDATE
        "AND (last_active_at + idle_timeout_ms > $1 OR idle_not_before > $1)"
        " UNION ALL "
        "SELECT MIN(activity_at) + " TEXT(SP_ACTIVITY_STALE_MS) CANDIDATE
        "AND last_active_at + idle_timeout_ms <= $1 AND " IN_USE_BY_ACTIVITY ") AS times",
        "i", now);
    if (!rows || sp_db_next(rows, error) != 1)
        return false;
    *ret = sp_db_text(rows, 0) ? sp_db_int(rows, 0) : G_MAXINT64;
    return true;
}
