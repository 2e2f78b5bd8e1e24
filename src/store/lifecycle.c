/* Deleting a sandbox: it wins over everything that is under way. */
#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "store/internal.h"

/* The delete operation to answer a repeated DELETE with: the last one, unless it has failed (a
 * worker that was away too long), for then the caller wants a new try. */
static bool find_delete(struct sp_db_tx *tx, const struct sp_sandbox_row *sandbox,
                        char ret_id[SP_ID_MAX], GError **error)
{
    SP_DB_ROWS_AUTO *rows =
        sp_db_query(tx, error,
                    "SELECT id, state FROM operations WHERE sandbox_id = $1 AND kind = 'delete'"
                    " ORDER BY id DESC LIMIT 1",
                    "t", sandbox->id);
    int got = rows ? sp_db_next(rows, error) : -1;
    if (got < 0)
        return false;
    ret_id[0] = '\0';
    bool gone = sandbox->state == SP_STATE_DELETED;
    if (got > 0 && (gone || strcmp(sp_db_text(rows, 1), "failed") != 0))
        g_strlcpy(ret_id, sp_db_text(rows, 0), SP_ID_MAX);
    return true;
}

bool sp_tx_sandbox_delete(struct sp_db_tx *tx, const struct sp_sandbox_row *sandbox,
                          const char *reason, char ret_operation_id[SP_ID_MAX], GPtrArray *topics,
                          GError **error)
{
    int64_t revision;
    static const char why[] = "the sandbox was deleted before the operation ended";
    struct sp_operation_new op = {.tenant = sandbox->tenant,
                                  .sandbox_id = sandbox->id,
                                  .kind = SP_OPERATION_DELETE,
                                  .generation = sandbox->generation + 1};
    sp_topics_add(topics, sandbox->operation_id); /* who waits for what was under way */
    sp_topics_add_node(topics, sandbox->node);
    /* Whatever was under way can not succeed any more. */
    if (!sp_tx_snapshots_abandon(tx, sandbox->id, "conflict", why, topics, error) ||
        !sp_db_run(tx, NULL, error,
                   "UPDATE operations SET state = 'failed', error_code = 'conflict',"
                   " error_message = $3, finished_at = $2"
                   " WHERE sandbox_id = $1 AND state IN ('pending', 'running')",
                   "tit", sandbox->id, sp_time_now_ms(), why) ||
        !sp_tx_bump_revision(tx, &revision, error) ||
        !sp_tx_operation_insert(tx, &op, ret_operation_id, error))
        return false;
    return sp_db_run(tx, NULL, error,
                     "UPDATE sandboxes SET state = 'deleting', desired_state = 'deleted',"
                     " state_reason = $2, generation = $3, revision = $4, operation_id = $5"
                     " WHERE id = $1",
                     "ttiit", sandbox->id, reason, op.generation, revision, ret_operation_id);
}

static bool delete_in(struct sp_db_tx *tx, const char *tenant, const char *id, const char *reason,
                      const struct sp_idempotency *idem, char ret_operation_id[SP_ID_MAX],
                      struct sp_sandbox_row **ret_before, GPtrArray *topics, GError **error)
{
    struct sp_replay replay;
    if (!sp_tx_replay_find(tx, idem, &replay, error) || !sp_tx_sandbox(tx, id, ret_before, error))
        return false;
    struct sp_sandbox_row *s = *ret_before;
    if (!s || (tenant && strcmp(tenant, s->tenant) != 0)) {
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no sandbox %s", id);
        return false;
    }
    if (!find_delete(tx, s, ret_operation_id, error))
        return false;
    if (ret_operation_id[0] == '\0' &&
        !sp_tx_sandbox_delete(tx, s, reason, ret_operation_id, topics, error))
        return false;
    return replay.found || sp_tx_replay_record(tx, idem, id, ret_operation_id, error);
}

bool sp_store_sandbox_delete(struct sp_store *store, const char *tenant, const char *id,
                             const char *reason, const struct sp_idempotency *idem,
                             char ret_operation_id[SP_ID_MAX], GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    if (!tx)
        return false;
    struct sp_sandbox_row *before = NULL;
    char operation_id[SP_ID_MAX];
    g_autoptr(GPtrArray) topics = sp_topics_new();
    bool ok = delete_in(tx, tenant, id, reason, idem, operation_id, &before, topics, error) &&
              sp_db_commit_auto(&tx, error);
    if (ok) {
        sp_topics_add(topics, SP_TOPIC_CONTROLLER);
        sp_topics_publish(store, topics);
        g_strlcpy(ret_operation_id, operation_id, SP_ID_MAX);
    }
    sp_sandbox_row_free(before);
    return ok;
}
