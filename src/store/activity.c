#include "base/time.h"
#include "store/internal.h"

bool sp_store_activity(struct sp_store *store, const char *node, const struct sp_activity *items,
                       unsigned n, GError **error)
{
    int64_t now = sp_time_now_ms();
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    if (!tx)
        return false;
    for (unsigned i = 0; i < n; i++) {
        bool used = items[i].attached > 0 || items[i].cpu_milli > SP_BUSY_CPU_MILLI;
        if (!sp_db_run(tx, NULL, error,
                       "UPDATE sandboxes SET attached = $2, cpu_milli = $3, activity_at = $4,"
                       " last_active_at = CASE WHEN last_active_at < $5 THEN $5 ELSE"
                       " last_active_at END WHERE id = $1 AND node = $6 AND state = 'running'",
                       "tiiiit", items[i].id, items[i].attached, items[i].cpu_milli, now,
                       used ? now : (int64_t)0, node))
            return false;
    }
    return sp_db_commit_auto(&tx, error);
}
