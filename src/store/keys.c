#include "base/error.h"
#include "base/time.h"
#include "store/internal.h"

void sp_key_row_free(struct sp_key_row *key)
{
    if (!key)
        return;
    g_free(key->id);
    g_free(key->tenant);
    g_free(key->name);
    g_free(key->role);
    g_free(key);
}

bool sp_store_key_set_admin(struct sp_store *store, const char *hash, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    return tx &&
           sp_db_run(tx, NULL, error,
                     "INSERT INTO api_keys (id, tenant, name, role, hash, created_at)"
                     " VALUES ('key_admin', 'default', 'admin', 'admin', $1, $2)"
                     " ON CONFLICT (id) DO UPDATE SET hash = excluded.hash, revoked_at = 0",
                     "ti", hash, sp_time_now_ms()) &&
           sp_db_commit_auto(&tx, error);
}

struct sp_key_row *sp_store_key_find(struct sp_store *store, const char *hash, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    if (!tx)
        return NULL;
    SP_DB_ROWS_AUTO *rows = sp_db_query(tx, error,
                                        "SELECT id, tenant, name, role, hash FROM api_keys"
                                        " WHERE hash = $1 AND revoked_at = 0",
                                        "t", hash);
    int got = rows ? sp_db_next(rows, error) : -1;
    if (got < 0)
        return NULL;
    /* The index has compared the hashes already, in its own time; what an attacker could learn from
     * that are bits of a hash, not of a key. The last word is in constant time all the same. */
    if (got == 0 || !sp_hash_equal(sp_db_text(rows, 4), hash)) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_UNAUTHENTICATED, "the API key is not valid");
        return NULL;
    }
    struct sp_key_row *key = g_new0(struct sp_key_row, 1);
    key->id = g_strdup(sp_db_text(rows, 0));
    key->tenant = g_strdup(sp_db_text(rows, 1));
    key->name = g_strdup(sp_db_text(rows, 2));
    key->role = g_strdup(sp_db_text(rows, 3));
    return key;
}
