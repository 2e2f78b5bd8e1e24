/*
 * Applying what a worker reports. Three rules keep a late or repeated report harmless: it must be
 * of the row's node and generation; desired "deleted" is only ever followed by "deleted"; an ended
 * state (failed, deleted) stays.
 */
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/time.h"
#include "store/internal.h"

/* A sandbox that stands still uses nothing; one that begins to run has been used now. Without a new
 * reason the old one stays: why the last change failed, or why it was paused; the next change that
 * is asked for takes it away. */
static bool set_state(struct sp_db_tx *tx, const struct sp_sandbox_row *s, enum sp_state state,
                      const char *reason, int64_t started_at_ms, GError **error)
{
    bool runs = state == SP_STATE_RUNNING;
    bool still = state == SP_STATE_PAUSED || state == SP_STATE_SUSPENDED;
    if (!sp_db_run(
            tx, NULL, error,
            "UPDATE sandboxes SET state = $2, state_reason = COALESCE($3, state_reason),"
            " started_at = CASE WHEN started_at = 0 THEN $4 ELSE started_at END WHERE id = $1",
            "ttti", s->id, sp_state_names[state], reason, started_at_ms))
        return false;
    if (state == s->state)
        return true;
    if (still || runs) {
        if (!sp_db_run(tx, NULL, error,
                       "UPDATE sandboxes SET attached = 0, cpu_milli = 0, activity_at = $2"
                       " WHERE id = $1",
                       "ti", s->id, sp_time_now_ms()))
            return false;
    }
    return !runs || sp_db_run(tx, NULL, error,
                              "UPDATE sandboxes SET last_active_at = $2, saved_from = NULL"
                              " WHERE id = $1",
                              "ti", s->id, sp_time_now_ms());
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

bool sp_tx_sandbox_fail(struct sp_db_tx *tx, const struct sp_sandbox_row *s, const char *code,
                        const char *why, const char *reason, const char *steps, GPtrArray *topics,
                        GError **error)
{
    sp_topics_add(topics, s->operation_id);
    return set_state(tx, s, SP_STATE_FAILED, reason, 0, error) &&
           sp_tx_sessions_lost(tx, s->id, error) &&
           sp_tx_snapshots_abandon(tx, s->id, code, why, topics, error) &&
           sp_tx_operation_end(tx, s->operation_id, code, why, steps, error);
}

static bool fail(struct sp_db_tx *tx, const struct sp_sandbox_row *s,
                 const struct sp_observation *o, GPtrArray *topics, GError **error)
{
    const char *code = o->error_code ? o->error_code : "internal";
    const char *why = o->error_message ? o->error_message
                      : o->reason      ? o->reason
                                       : "the worker reported no reason";
    return sp_tx_sandbox_fail(tx, s, code, why, o->reason ? o->reason : why, o->steps, topics,
                              error);
}

static bool mark_running(struct sp_db_tx *tx, const char *operation_id, GError **error)
{
    return sp_db_run(tx, NULL, error,
                     "UPDATE operations SET state = 'running', started_at = $2"
                     " WHERE id = $1 AND state = 'pending'",
                     "ti", operation_id, sp_time_now_ms());
}

/* The steps of the operation so far (a fork's: of its snapshot) and those reported. NULL: none. */
static bool all_steps(struct sp_db_tx *tx, const char *operation_id, const char *steps, char **ret,
                      GError **error)
{
    SP_DB_ROWS_AUTO *rows = sp_db_query(
        tx, error, "SELECT steps FROM operations WHERE id = $1 AND state IN ('pending', 'running')",
        "t", operation_id);
    int got = rows ? sp_db_next(rows, error) : -1;
    if (got < 0)
        return false;
    const char *before = got > 0 ? sp_db_text(rows, 0) : "[]";
    g_autoptr(json_t) list = sp_json_parse(before, strlen(before), NULL);
    g_autoptr(json_t) more = steps ? sp_json_parse(steps, strlen(steps), NULL) : NULL;
    if (json_is_array(list) && json_is_array(more))
        json_array_extend(list, more);
    *ret = json_is_array(list) ? sp_json_dump(list) : g_strdup(steps);
    return true;
}

/* The operation has ended well. A rollback moves the sandbox in the tree of snapshots, once: a
 * report that is repeated must not undo what came after it. */
static bool succeed(struct sp_db_tx *tx, const struct sp_sandbox_row *s,
                    const struct sp_observation *o, GError **error)
{
    g_autofree char *steps = NULL;
    bool rolled_back = s->rollback_generation == s->generation;
    return (!rolled_back ||
            sp_db_run(tx, NULL, error,
                      "UPDATE sandboxes SET head_snapshot_id = rollback_snapshot_id WHERE id = $1"
                      " AND EXISTS (SELECT 1 FROM operations o WHERE o.id = $2"
                      " AND o.state IN ('pending', 'running'))",
                      "tt", s->id, s->operation_id)) &&
           all_steps(tx, s->operation_id, o->steps, &steps, error) &&
           sp_tx_operation_end(tx, s->operation_id, NULL, NULL, steps, error);
}

/* The wanted change could not be made; the sandbox is in the state that was reported. When it was
 * to be suspended for being idle, it is paused instead. */
static bool change_failed(struct sp_db_tx *tx, const struct sp_sandbox_row *s,
                          const struct sp_observation *o, GPtrArray *topics, GError **error)
{
    struct sp_change_facts facts;
    char operation_id[SP_ID_MAX];
    const char *why = o->error_message ? o->error_message : "the worker reported no reason";
    if (!sp_tx_change_facts(tx, s, &facts, operation_id, error) ||
        !sp_tx_operation_end(tx, s->operation_id, o->error_code, why, o->steps, error))
        return false;
    if (facts.under_way == SP_OPERATION_SUSPEND && o->state == SP_STATE_RUNNING &&
        g_strcmp0(s->state_reason, SP_IDLE_REASON) == 0) {
        struct sp_change_new pause = {.change = SP_CHANGE_PAUSE};
        g_autofree char *reason = g_strconcat(SP_IDLE_PAUSED, why, NULL);
        return sp_tx_change(tx, s, &pause, reason, operation_id, topics, error);
    }
    return sp_tx_change_failed(tx, s, o->state, o->reason ? o->reason : why, topics, error);
}

static bool apply_alive(struct sp_db_tx *tx, const struct sp_sandbox_row *s,
                        const struct sp_observation *o, GPtrArray *topics, GError **error)
{
    int64_t started = o->started_at_ms ? o->started_at_ms : sp_time_now_ms();
    if (o->error_code)
        return change_failed(tx, s, o, topics, error);
    if (!set_state(tx, s, o->state, o->reason, started, error))
        return false;
    return g_str_equal(sp_state_names[o->state], sp_desired_names[s->desired])
               ? succeed(tx, s, o, error)
               : mark_running(tx, s->operation_id, error);
}

static bool apply_wanted(struct sp_db_tx *tx, const struct sp_sandbox_row *s,
                         const struct sp_observation *o, GPtrArray *topics, GError **error)
{
    switch (o->state) {
    case SP_STATE_CREATING:
        return s->state != SP_STATE_CREATING || mark_running(tx, s->operation_id, error);
    case SP_STATE_RUNNING:
    case SP_STATE_PAUSED:
    case SP_STATE_SUSPENDED:
        return apply_alive(tx, s, o, topics, error);
    case SP_STATE_FAILED:
        return fail(tx, s, o, topics, error);
    case SP_STATE_DELETED: { /* gone from its node, though nobody wanted that */
        struct sp_observation gone = *o;
        gone.error_code = "internal";
        gone.error_message = gone.reason = "the sandbox has vanished from its node";
        return fail(tx, s, &gone, topics, error);
    }
    default:
        return true;
    }
}

static bool apply(struct sp_db_tx *tx, const struct sp_sandbox_row *s,
                  const struct sp_observation *o, GPtrArray *topics, GError **error)
{
    if (o->generation != s->generation || s->state == SP_STATE_DELETED)
        return true;
    if (s->desired == SP_DESIRED_DELETED) {
        if (o->state == SP_STATE_DELETED)
            return finish_delete(tx, s, o, error);
        if (o->state == SP_STATE_FAILED) /* not removed now; the worker goes on trying */
            return set_state(tx, s, SP_STATE_DELETING,
                             o->error_message ? o->error_message : o->reason, 0, error);
        return mark_running(tx, s->operation_id, error);
    }
    if (s->state == SP_STATE_FAILED)
        return true;
    return apply_wanted(tx, s, o, topics, error);
}

bool sp_store_observe(struct sp_store *store, const char *node,
                      const struct sp_observation *observations, unsigned n, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    if (!tx)
        return false;
    g_autoptr(GPtrArray) topics = sp_topics_new();
    for (unsigned i = 0; i < n; i++) {
        struct sp_sandbox_row *s = NULL;
        if (!sp_tx_sandbox(tx, observations[i].id, &s, error))
            return false;
        bool ok = true;
        if (s && g_strcmp0(s->node, node) == 0) {
            ok = apply(tx, s, &observations[i], topics, error);
            sp_topics_add(topics, s->operation_id);
        }
        sp_sandbox_row_free(s);
        if (!ok)
            return false;
    }
    if (!sp_tx_snapshots_release(tx, topics, error) || !sp_db_commit_auto(&tx, error))
        return false;
    sp_topics_add(topics, SP_TOPIC_CONTROLLER); /* a state that has begun moves the idle deadline */
    sp_topics_publish(store, topics);
    return true;
}
