#include "model/idempotency.h"

#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "store/internal.h"

bool sp_tx_replay_find(struct sp_db_tx *tx, const struct sp_idempotency *idem,
                       struct sp_replay *ret, GError **error)
{
    struct sp_replay replay = {0};
    if (!idem || !idem->key) {
        *ret = replay;
        return true;
    }
    SP_DB_ROWS_AUTO *rows =
        sp_db_query(tx, error,
                    "SELECT request_hash, resource_id, operation_id FROM idempotency"
                    " WHERE key_id = $1 AND idem_key = $2 AND created_at > $3",
                    "tti", idem->key_id, idem->key, sp_time_now_ms() - SP_IDEMPOTENCY_KEEP_MS);
    int got = rows ? sp_db_next(rows, error) : -1;
    if (got < 0)
        return false;
    if (got > 0) {
        if (strcmp(sp_db_text(rows, 0), idem->hash) != 0) {
            g_set_error_literal(error, SP_ERROR, SP_ERROR_IDEMPOTENCY_CONFLICT,
                                "this Idempotency-Key was used for another request");
            return false;
        }
        replay.found = true;
        g_strlcpy(replay.resource_id, sp_db_text(rows, 1), SP_ID_MAX);
        g_strlcpy(replay.operation_id, sp_db_text(rows, 2), SP_ID_MAX);
    }
    *ret = replay;
    return true;
}

bool sp_tx_replay_record(struct sp_db_tx *tx, const struct sp_idempotency *idem,
                         const char *resource_id, const char *operation_id, GError **error)
{
    if (!idem || !idem->key)
        return true;
    /* An expired record of the same key may still be there. */
    return sp_db_run(tx, NULL, error,
                     "INSERT INTO idempotency"
                     " (key_id, idem_key, request_hash, resource_id, operation_id, created_at)"
                     " VALUES ($1, $2, $3, $4, $5, $6)"
                     " ON CONFLICT (key_id, idem_key) DO UPDATE SET"
                     " request_hash = excluded.request_hash, resource_id = excluded.resource_id,"
                     " operation_id = excluded.operation_id, created_at = excluded.created_at",
                     "ttttti", idem->key_id, idem->key, idem->hash, resource_id, operation_id,
                     sp_time_now_ms());
}

bool sp_store_replay_find(struct sp_store *store, const struct sp_idempotency *idem,
                          struct sp_replay *ret, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    return tx && sp_tx_replay_find(tx, idem, ret, error);
}

bool sp_store_replay_claim(struct sp_store *store, const struct sp_idempotency *idem,
                           struct sp_replay *ret_replay, GError **error)
{
    if (!idem || !idem->key) {
        *ret_replay = (struct sp_replay){0};
        return true;
    }
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    struct sp_replay replay;
    if (!tx || !sp_tx_replay_find(tx, idem, &replay, error))
        return false;
    if (!replay.found &&
        (!sp_tx_replay_record(tx, idem, "", "", error) || !sp_db_commit_auto(&tx, error)))
        return false;
    *ret_replay = replay;
    return true;
}

void sp_store_replay_release(struct sp_store *store, const struct sp_idempotency *idem)
{
    if (!idem || !idem->key)
        return;
    /* Failing here only leaves the claim in place, which is the safe side. */
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, NULL);
    if (tx &&
        sp_db_run(tx, NULL, NULL, "DELETE FROM idempotency WHERE key_id = $1 AND idem_key = $2",
                  "tt", idem->key_id, idem->key))
        sp_db_commit_auto(&tx, NULL);
}
