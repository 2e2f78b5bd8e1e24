#include "store/store.h"

#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "store/internal.h"
#include "store/migrations/migrations.h"

/* *ret_newest: 0 for a new database. Returns the set of the steps that were done (keys are
 * GINT_TO_POINTER(version)); NULL on failure. */
static GHashTable *done_steps(struct sp_db_tx *tx, int64_t *ret_newest, GError **error)
{
    if (!sp_db_run(tx, NULL, error,
                   "CREATE TABLE IF NOT EXISTS schema_migrations (version BIGINT PRIMARY KEY,"
                   " applied_at BIGINT NOT NULL)",
                   ""))
        return NULL;
    SP_DB_ROWS_AUTO *rows =
        sp_db_query(tx, error, "SELECT version FROM schema_migrations ORDER BY version", "");
    if (!rows)
        return NULL;
    g_autoptr(GHashTable) done = g_hash_table_new(NULL, NULL);
    int64_t newest = 0;
    int got;
    while ((got = sp_db_next(rows, error)) > 0) {
        newest = sp_db_int(rows, 0);
        g_hash_table_add(done, GINT_TO_POINTER((int)newest));
    }
    if (got < 0)
        return NULL;
    *ret_newest = newest;
    return g_steal_pointer(&done);
}

static bool do_step(struct sp_db_tx *tx, const struct sp_migration *m, GError **error)
{
    for (const char *const *sql = m->statements; *sql; sql++) {
        if (!sp_db_run(tx, NULL, error, *sql, "")) {
            g_prefix_error(error, "migration %d: ", m->version);
            return false;
        }
    }
    return sp_db_run(tx, NULL, error,
                     "INSERT INTO schema_migrations (version, applied_at) VALUES ($1, $2)", "ii",
                     (int64_t)m->version, sp_time_now_ms());
}

/* Every table that a step has made is as we need it. */
static bool check_tables(struct sp_db *db, struct sp_db_tx *tx, GError **error)
{
    static const char create[] = "CREATE TABLE ";
    for (const struct sp_migration *m = sp_migrations; m->version; m++) {
        for (const char *const *sql = m->statements; *sql; sql++) {
            if (!g_str_has_prefix(*sql, create))
                continue;
            const char *name = *sql + strlen(create);
            g_autofree char *table = g_strndup(name, strcspn(name, " ("));
            if (!sp_db_check_table(db, tx, table, error))
                return false;
        }
    }
    return true;
}

/* All steps in one transaction: a crash leaves the old version whole, and of two servers that start
 * at once one does them and the other finds them done. */
static bool migrate(struct sp_db *db, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(db, SP_DB_WRITE, error);
    int64_t version, newest = 0;
    g_autoptr(GHashTable) done = tx ? done_steps(tx, &version, error) : NULL;
    if (!done)
        return false;
    for (const struct sp_migration *m = sp_migrations; m->version; m++) {
        newest = MAX(newest, m->version);
        if (!g_hash_table_contains(done, GINT_TO_POINTER(m->version)) && !do_step(tx, m, error))
            return false;
    }
    if (version > newest) {
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL,
                    "the database has schema version %" G_GINT64_FORMAT
                    ", this program knows up to %" G_GINT64_FORMAT,
                    version, newest);
        return false;
    }
    return check_tables(db, tx, error) && sp_db_commit_auto(&tx, error);
}

struct sp_store *sp_store_open(const char *where, GError **error)
{
    struct sp_db *db = sp_db_open(where, error);
    if (!db)
        return NULL;
    if (!migrate(db, error)) {
        sp_db_close(db);
        return NULL;
    }
    struct sp_store *store = g_new0(struct sp_store, 1);
    store->db = db;
    store->changes = sp_changes_new();
    sp_id_new("srv", store->holder);
    sp_db_listen(db, sp_changes_heard, store->changes);
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

bool sp_tx_count(struct sp_db_tx *tx, const char *sql, const char *id, int64_t *ret, GError **error)
{
    SP_DB_ROWS_AUTO *rows = sp_db_query(tx, error, sql, "t", id);
    if (!rows || sp_db_next(rows, error) != 1)
        return false;
    *ret = sp_db_int(rows, 0);
    return true;
}
