/* Leases by rows. A holder is a process: it is named anew at each start. */
#include "base/error.h"
#include "store/internal.h"

bool sp_store_shared(const struct sp_store *store)
{
    return sp_db_shared(store->db);
}

/* A row whose holder is another one and which has not run out. */
static bool held_by_other(struct sp_store *store, struct sp_db_tx *tx, const char *name, bool *ret,
                          GError **error)
{
    g_autofree char *sql = g_strconcat("SELECT holder FROM leases WHERE name = $1 AND holder <> $2"
                                       " AND expires_at > ",
                                       sp_db_now_ms_sql(store->db), NULL);
    SP_DB_ROWS_AUTO *rows = sp_db_query(tx, error, sql, "tt", name, store->holder);
    int got = rows ? sp_db_next(rows, error) : -1;
    if (got < 0)
        return false;
    *ret = got > 0;
    return true;
}

/* Only a look, which those who wait for their turn take often: it locks and writes nothing. */
static bool looks_free(struct sp_store *store, const char *name, bool *ret, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    bool other;
    if (!tx || !held_by_other(store, tx, name, &other, error))
        return false;
    *ret = !other;
    return true;
}

bool sp_store_lease_take(struct sp_store *store, const char *name, int64_t ttl_ms, bool *ret_held,
                         GError **error)
{
    bool is_free;
    if (!looks_free(store, name, &is_free, error))
        return false;
    if (!is_free) {
        *ret_held = false;
        return true;
    }
    const char *now = sp_db_now_ms_sql(store->db);
    g_autofree char *sql =
        g_strconcat("INSERT INTO leases (name, holder, expires_at) VALUES ($1, $2, $3 + ", now,
                    ") ON CONFLICT (name) DO UPDATE SET holder = excluded.holder,"
                    " expires_at = excluded.expires_at"
                    " WHERE leases.holder = excluded.holder OR leases.expires_at <= ",
                    now, NULL);
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    int64_t changed;
    if (!tx || !sp_db_run(tx, &changed, error, sql, "tti", name, store->holder, ttl_ms) ||
        !sp_db_commit_auto(&tx, error))
        return false;
    *ret_held = changed > 0;
    return true;
}

void sp_store_lease_release(struct sp_store *store, const char *name)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, NULL);
    if (tx && sp_db_run(tx, NULL, NULL, "DELETE FROM leases WHERE name = $1 AND holder = $2", "tt",
                        name, store->holder))
        sp_db_commit_auto(&tx, NULL);
}

bool sp_tx_lease_check(struct sp_store *store, struct sp_db_tx *tx, const char *name,
                       GError **error)
{
    bool other = false;
    if (!sp_db_shared(store->db))
        return true;
    if (!held_by_other(store, tx, name, &other, error))
        return false;
    if (other)
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                    "another server holds the lease \"%s\"", name);
    return !other;
}
