#include "store/store.h"

#include "base/error.h"
#include "base/time.h"
#include "store/internal.h"
#include "store/migrations/migrations.h"

/* 0 for a new database. */
static bool schema_version(struct sp_db_tx *tx, int64_t *ret, GError **error)
{
    if (!sp_db_run(tx, NULL, error,
                   "CREATE TABLE IF NOT EXISTS schema_migrations (version BIGINT PRIMARY KEY,"
                   " applied_at BIGINT NOT NULL)",
                   ""))
        return false;
    SP_DB_ROWS_AUTO *rows =
        sp_db_query(tx, error, "SELECT COALESCE(MAX(version), 0) FROM schema_migrations", "");
    if (!rows || sp_db_next(rows, error) != 1)
        return false;
    *ret = sp_db_int(rows, 0);
    return true;
}

/* All steps in one transaction: a crash leaves the old version whole. */
static bool migrate(struct sp_db *db, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(db, SP_DB_WRITE, error);
    int64_t version;
    if (!tx || !schema_version(tx, &version, error))
        return false;
    int64_t newest = 0;
    for (const struct sp_migration *m = sp_migrations; m->version; m++) {
        newest = m->version;
        if (m->version <= version)
            continue;
        for (const char *const *sql = m->statements; *sql; sql++) {
            if (!sp_db_run(tx, NULL, error, *sql, "")) {
                g_prefix_error(error, "migration %d: ", m->version);
                return false;
            }
        }
        if (!sp_db_run(tx, NULL, error,
                       "INSERT INTO schema_migrations (version, applied_at) VALUES ($1, $2)", "ii",
                       (int64_t)m->version, sp_time_now_ms()))
            return false;
    }
    if (version > newest) {
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL,
                    "the database has schema version %" G_GINT64_FORMAT
                    ", this program knows up to %" G_GINT64_FORMAT,
                    version, newest);
        return false;
    }
    return sp_db_commit_auto(&tx, error);
}

struct sp_store *sp_store_open(const char *path, GError **error)
{
    struct sp_db *db = sp_db_open(path, error);
    if (!db)
        return NULL;
    if (!migrate(db, error)) {
        sp_db_close(db);
        return NULL;
    }
    struct sp_store *store = g_new0(struct sp_store, 1);
    store->db = db;
    store->changes = sp_changes_new();
    return store;
}

void sp_store_close(struct sp_store *store)
{
    if (!store)
        return;
    sp_db_close(store->db);
    sp_changes_free(store->changes);
    g_free(store);
}

bool sp_tx_bump_revision(struct sp_db_tx *tx, int64_t *ret, GError **error)
{
    SP_DB_ROWS_AUTO *rows = sp_db_query(
        tx, error, "UPDATE counters SET value = value + 1 WHERE name = 'revision' RETURNING value",
        "");
    if (!rows || sp_db_next(rows, error) != 1)
        return false;
    *ret = sp_db_int(rows, 0);
    return true;
}
