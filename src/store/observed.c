/*
 * Applying what a worker reports. Three rules keep a late or repeated report harmless: it must be
 * of the row's node and generation; desired "deleted" is only ever followed by "deleted"; an ended
 * state (failed, deleted) stays.
 */
#include "base/error.h"
#include "base/time.h"
#include "store/internal.h"

static bool set_state(struct sp_db_tx *tx, const char *id, enum sp_state state, const char *reason,
                      int64_t started_at_ms, GError **error)
{
    return sp_db_run(tx, NULL, error,
                     "UPDATE sandboxes SET state = $2, state_reason = $3, started_at ="
                     " CASE WHEN started_at = 0 THEN $4 ELSE started_at END WHERE id = $1",
                     "ttti", id, sp_state_names[state], reason, started_at_ms);
}

/* Nothing of it is left. What the row held of the user's goes now; the row itself in a day. */
static bool finish_delete(struct sp_db_tx *tx, const struct sp_sandbox_row *s,
                          const struct sp_observation *o, GError **error)
{
    return sp_db_run(tx, NULL, error,
                     "UPDATE sandboxes SET state = 'deleted', deleted_at = $2, env = '{}'"
                     " WHERE id = $1",
                     "ti", s->id, sp_time_now_ms()) &&
           sp_tx_sessions_lost(tx, s->id, error) &&
           sp_db_run(tx, NULL, error, "UPDATE sessions SET spec = '{}' WHERE sandbox_id = $1", "t",
                     s->id) &&
           sp_tx_operation_end(tx, s->operation_id, NULL, NULL, o->steps, error);
}

static bool fail(struct sp_db_tx *tx, const struct sp_sandbox_row *s,
                 const struct sp_observation *o, GError **error)
{
    const char *code = o->error_code ? o->error_code : "internal";
    const char *why = o->error_message ? o->error_message
                      : o->reason      ? o->reason
                                       : "the worker reported no reason";
    return set_state(tx, s->id, SP_STATE_FAILED, o->reason ? o->reason : why, 0, error) &&
           sp_tx_sessions_lost(tx, s->id, error) &&
           sp_tx_operation_end(tx, s->operation_id, code, why, o->steps, error);
}

static bool apply_wanted(struct sp_db_tx *tx, const struct sp_sandbox_row *s,
                         const struct sp_observation *o, GError **error)
{
    int64_t started = o->started_at_ms ? o->started_at_ms : sp_time_now_ms();
    switch (o->state) {
    case SP_STATE_CREATING:
        if (s->state != SP_STATE_CREATING)
            return true;
        return sp_db_run(tx, NULL, error,
                         "UPDATE operations SET state = 'running', started_at = $2"
                         " WHERE id = $1 AND state = 'pending'",
                         "ti", s->operation_id, sp_time_now_ms());
    case SP_STATE_RUNNING:
    case SP_STATE_PAUSED:
    case SP_STATE_SUSPENDED:
        if (!set_state(tx, s->id, o->state, o->reason, started, error))
            return false;
        if (g_str_equal(sp_state_names[o->state], sp_desired_names[s->desired]))
            return sp_tx_operation_end(tx, s->operation_id, NULL, NULL, o->steps, error);
        return true;
    case SP_STATE_FAILED:
        return fail(tx, s, o, error);
    case SP_STATE_DELETED: { /* gone from its node, though nobody wanted that */
        struct sp_observation gone = *o;
        gone.error_code = "internal";
        gone.error_message = gone.reason = "the sandbox has vanished from its node";
        return fail(tx, s, &gone, error);
    }
    default:
        return true;
    }
}

static bool apply(struct sp_db_tx *tx, const struct sp_sandbox_row *s,
                  const struct sp_observation *o, GError **error)
{
    if (o->generation != s->generation || s->state == SP_STATE_DELETED)
        return true;
    if (s->desired == SP_DESIRED_DELETED) {
        if (o->state == SP_STATE_DELETED)
            return finish_delete(tx, s, o, error);
        if (o->state ==
            SP_STATE_FAILED) /* it could not be removed now; the worker goes on trying */
            return set_state(tx, s->id, SP_STATE_DELETING,
                             o->error_message ? o->error_message : o->reason, 0, error);
        return sp_db_run(tx, NULL, error,
                         "UPDATE operations SET state = 'running', started_at = $2"
                         " WHERE id = $1 AND state = 'pending'",
                         "ti", s->operation_id, sp_time_now_ms());
    }
    if (s->state == SP_STATE_FAILED)
        return true;
    return apply_wanted(tx, s, o, error);
}

bool sp_store_observe(struct sp_store *store, const char *node,
                      const struct sp_observation *observations, unsigned n, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    if (!tx)
        return false;
    g_autoptr(GPtrArray) topics = g_ptr_array_new_with_free_func(g_free);
    for (unsigned i = 0; i < n; i++) {
        struct sp_sandbox_row *s = NULL;
        if (!sp_tx_sandbox(tx, observations[i].id, &s, error))
            return false;
        bool ok = true;
        if (s && g_strcmp0(s->node, node) == 0) {
            ok = apply(tx, s, &observations[i], error);
            g_ptr_array_add(topics, g_strdup(s->operation_id));
        }
        sp_sandbox_row_free(s);
        if (!ok)
            return false;
    }
    if (!sp_db_commit_auto(&tx, error))
        return false;
    for (unsigned i = 0; i < topics->len; i++)
        sp_store_publish(store, topics->pdata[i]);
    return true;
}
