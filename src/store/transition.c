/* Pause, suspend, wake and rollback: a new desired state and its operation in one transaction. */
#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "model/isolation.h"
#include "store/internal.h"

/* The first column of the first row; "" when there is none. */
static bool first_id(struct sp_db_rows *taken, char ret_id[SP_ID_MAX], GError **error)
{
    SP_DB_ROWS_AUTO *rows = taken;
    int got = rows ? sp_db_next(rows, error) : -1;
    if (got < 0)
        return false;
    g_strlcpy(ret_id, got > 0 ? sp_db_text(rows, 0) : "", SP_ID_MAX);
    return true;
}

static bool read_under_way(struct sp_db_tx *tx, const char *operation_id,
                           enum sp_operation_kind *ret, GError **error)
{
    SP_DB_ROWS_AUTO *rows = sp_db_query(
        tx, error, "SELECT kind FROM operations WHERE id = $1 AND state IN ('pending', 'running')",
        "t", operation_id);
    int got = rows ? sp_db_next(rows, error) : -1;
    if (got < 0)
        return false;
    *ret = SP_N_OPERATION_KINDS;
    if (got > 0)
        sp_operation_kind_parse(sp_db_text(rows, 0), ret);
    return true;
}

bool sp_tx_change_facts(struct sp_db_tx *tx, const struct sp_sandbox_row *s,
                        struct sp_change_facts *ret, char ret_operation_id[SP_ID_MAX],
                        GError **error)
{
    struct sp_change_facts facts = {.state = s->state, .desired = s->desired};
    int64_t saving;
    if (!read_under_way(tx, s->operation_id, &facts.under_way, error) ||
        !sp_tx_count(tx,
                     "SELECT COUNT(*) FROM snapshots WHERE sandbox_id = $1 AND state = 'creating'",
                     s->id, &saving, error))
        return false;
    facts.saving = saving > 0;
    if (facts.under_way != SP_N_OPERATION_KINDS)
        g_strlcpy(ret_operation_id, s->operation_id, SP_ID_MAX);
    else if (!first_id(sp_db_query(tx, error,
                                   "SELECT o.id FROM operations o WHERE o.kind IN ('snapshot',"
                                   " 'fork') AND o.snapshot_id IN (SELECT n.id FROM snapshots n"
                                   " WHERE n.sandbox_id = $1 AND n.state = 'creating')"
                                   " ORDER BY o.id LIMIT 1",
                                   "t", s->id),
                       ret_operation_id, error))
        return false;
    *ret = facts;
    return true;
}

/* The error for CONFLICT or PRECONDITION. */
static void refuse(enum sp_verdict verdict, enum sp_change change,
                   const struct sp_change_facts *facts, const char *operation_id, GError **error)
{
    const char *asked = sp_change_names[change];
    if (verdict == SP_VERDICT_CONFLICT) {
        const char *kind = facts->under_way != SP_N_OPERATION_KINDS
                               ? sp_operation_kind_names[facts->under_way]
                               : "snapshot";
        g_set_error(error, SP_ERROR, SP_ERROR_CONFLICT,
                    "%s is not possible now: a %s is under way (%s); try again when it has ended",
                    asked, kind, operation_id);
        return;
    }
    bool wake = facts->state == SP_STATE_SUSPENDED || facts->state == SP_STATE_PAUSED;
    g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                "%s is not possible: the sandbox is %s%s", asked, sp_state_names[facts->state],
                wake ? "; wake it first" : "");
}

bool sp_tx_no_memory(struct sp_db_tx *tx, const struct sp_sandbox_row *s, char **ret_why,
                     GError **error)
{
    SP_DB_ROWS_AUTO *rows =
        sp_db_query(tx, error, "SELECT tiers FROM nodes WHERE name = $1", "t", s->node);
    int got = rows ? sp_db_next(rows, error) : -1;
    if (got < 0)
        return false;
    *ret_why = sp_tier_no_memory(got > 0 ? sp_db_text(rows, 0) : "[]", s->isolation);
    return true;
}

/* For a request: SP_ERROR_UNSUPPORTED about /memory when it cannot. */
static bool check_memory(struct sp_db_tx *tx, const struct sp_sandbox_row *s, GError **error)
{
    g_autofree char *why = NULL;
    if (!sp_tx_no_memory(tx, s, &why, error))
        return false;
    if (why)
        sp_tier_set_no_memory_error(error, s->isolation, why);
    return !why;
}

bool sp_tx_check_save(struct sp_db_tx *tx, const struct sp_sandbox_row *s, enum sp_change change,
                      bool memory, bool *ret_memory, GError **error)
{
    struct sp_change_facts facts;
    char under_way[SP_ID_MAX];
    if (!sp_tx_change_facts(tx, s, &facts, under_way, error))
        return false;
    enum sp_verdict verdict = sp_change_decide(&facts, change);
    if (verdict != SP_VERDICT_ALLOWED) {
        refuse(verdict, change, &facts, under_way, error);
        return false;
    }
    bool suspended = s->state == SP_STATE_SUSPENDED;
    if (!suspended && memory && !check_memory(tx, s, error))
        return false;
    *ret_memory = suspended ? s->suspend_memory : memory;
    return true;
}

static bool check_snapshot(struct sp_db_tx *tx, const struct sp_sandbox_row *s, const char *id,
                           GError **error)
{
    struct sp_snapshot_row *n = NULL;
    if (!sp_tx_snapshot(tx, id, &n, error))
        return false;
    bool there = n && n->durable && strcmp(n->tenant, s->tenant) == 0 && n->wanted;
    bool own =
        there && (strcmp(n->sandbox_id, s->id) == 0 || g_strcmp0(s->parent_snapshot_id, id) == 0);
    bool ok = own && n->state == SP_SNAPSHOT_READY && strcmp(n->node, s->node) == 0;
    if (!there)
        sp_error_set_field(error, "/snapshot_id", "there is no snapshot %s", id);
    else if (!own)
        sp_error_set_field(error, "/snapshot_id",
                           "%s is neither a snapshot of this sandbox nor the one it was made from",
                           id);
    else if (!ok)
        sp_error_set_code_field(error, SP_ERROR_FAILED_PRECONDITION, "/snapshot_id",
                                "snapshot %s is %s, not ready", id,
                                sp_snapshot_state_names[n->state]);
    sp_snapshot_row_free(n);
    return ok;
}

bool sp_tx_change(struct sp_db_tx *tx, const struct sp_sandbox_row *s,
                  const struct sp_change_new *change, const char *reason,
                  char ret_operation_id[SP_ID_MAX], GPtrArray *topics, GError **error)
{
    int64_t revision;
    struct sp_operation_new op = {.tenant = s->tenant,
                                  .sandbox_id = s->id,
                                  .snapshot_id = change->snapshot_id,
                                  .kind = sp_change_operation(change->change),
                                  .generation = s->generation + 1};
    bool memory = change->change == SP_CHANGE_SUSPEND ? change->memory : s->suspend_memory;
    if (!sp_tx_bump_revision(tx, &revision, error) ||
        !sp_tx_operation_insert(tx, &op, ret_operation_id, error) ||
        !sp_db_run(tx, NULL, error,
                   "UPDATE sandboxes SET desired_state = $2, generation = $3, revision = $4,"
                   " operation_id = $5, state_reason = $6, suspend_memory = $7 WHERE id = $1",
                   "ttiitti", s->id, sp_desired_names[sp_change_desired(change->change)],
                   op.generation, revision, ret_operation_id, reason, (int64_t)memory))
        return false;
    sp_topics_add_node(topics, s->node);
    return change->change != SP_CHANGE_ROLLBACK ||
           sp_db_run(tx, NULL, error,
                     "UPDATE sandboxes SET rollback_snapshot_id = $2, rollback_generation = $3"
                     " WHERE id = $1",
                     "tti", s->id, change->snapshot_id, op.generation);
}

static enum sp_desired desired_of(enum sp_state state)
{
    switch (state) {
    case SP_STATE_PAUSED:
        return SP_DESIRED_PAUSED;
    case SP_STATE_SUSPENDED:
        return SP_DESIRED_SUSPENDED;
    default:
        return SP_DESIRED_RUNNING;
    }
}

bool sp_tx_change_failed(struct sp_db_tx *tx, const struct sp_sandbox_row *s, enum sp_state seen,
                         const char *reason, GPtrArray *topics, GError **error)
{
    int64_t revision;
    sp_topics_add_node(topics, s->node);
    /* No rollback may be left wanted: the worker would do it for the new generation. */
    return sp_tx_bump_revision(tx, &revision, error) &&
           sp_db_run(tx, NULL, error,
                     "UPDATE sandboxes SET state = $2, desired_state = $3, state_reason = $4,"
                     " generation = generation + 1, revision = $5, rollback_snapshot_id = NULL,"
                     " rollback_generation = 0, idle_not_before = $6 WHERE id = $1",
                     "ttttii", s->id, sp_state_names[seen], sp_desired_names[desired_of(seen)],
                     reason, revision, sp_time_now_ms() + SP_IDLE_RETRY_MS);
}

/* It is so already: the last operation that has made it so, or one made for the purpose. */
static bool find_done(struct sp_db_tx *tx, const struct sp_sandbox_row *s, enum sp_change change,
                      char ret_id[SP_ID_MAX], GError **error)
{
    struct sp_operation_new op = {.tenant = s->tenant,
                                  .sandbox_id = s->id,
                                  .kind = sp_change_operation(change),
                                  .generation = s->generation};
    if (!first_id(sp_db_query(tx, error,
                              "SELECT id FROM operations WHERE sandbox_id = $1 AND kind = $2 AND"
                              " state = 'succeeded' ORDER BY id DESC LIMIT 1",
                              "tt", s->id, sp_operation_kind_names[op.kind]),
                  ret_id, error))
        return false;
    return ret_id[0] || (sp_tx_operation_insert(tx, &op, ret_id, error) &&
                         sp_tx_operation_end(tx, ret_id, NULL, NULL, NULL, error));
}

static bool change_in(struct sp_db_tx *tx, const struct sp_sandbox_row *s,
                      const struct sp_change_new *change, char ret_id[SP_ID_MAX], GPtrArray *topics,
                      GError **error)
{
    struct sp_change_facts facts;
    char under_way[SP_ID_MAX];
    if (!sp_tx_change_facts(tx, s, &facts, under_way, error))
        return false;
    enum sp_verdict verdict = sp_change_decide(&facts, change->change);
    bool suspend = change->change == SP_CHANGE_SUSPEND;
    if (verdict == SP_VERDICT_REPEAT && suspend && change->memory != s->suspend_memory)
        verdict = SP_VERDICT_CONFLICT;
    switch (verdict) {
    case SP_VERDICT_ALLOWED:
        if (suspend && change->memory && !check_memory(tx, s, error))
            return false;
        if (change->change == SP_CHANGE_ROLLBACK &&
            !check_snapshot(tx, s, change->snapshot_id, error))
            return false;
        return sp_tx_change(tx, s, change, NULL, ret_id, topics, error);
    case SP_VERDICT_DONE:
        return find_done(tx, s, change->change, ret_id, error);
    case SP_VERDICT_REPEAT:
        g_strlcpy(ret_id, s->operation_id, SP_ID_MAX);
        return true;
    default:
        refuse(verdict, change->change, &facts, under_way, error);
        return false;
    }
}

bool sp_store_sandbox_change(struct sp_store *store, const char *tenant, const char *id,
                             const struct sp_change_new *change, const struct sp_idempotency *idem,
                             char ret_operation_id[SP_ID_MAX], GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    struct sp_replay replay;
    struct sp_sandbox_row *s = NULL;
    g_autoptr(GPtrArray) topics = sp_topics_new();
    if (!tx || !sp_tx_replay_find(tx, idem, &replay, error))
        return false;
    if (replay.found) {
        g_strlcpy(ret_operation_id, replay.operation_id, SP_ID_MAX);
        return true;
    }
    bool ok = sp_tx_sandbox_live(tx, tenant, id, &s, error) &&
              change_in(tx, s, change, replay.operation_id, topics, error) &&
              sp_tx_sandbox_touch(tx, id, error) &&
              sp_tx_replay_record(tx, idem, id, replay.operation_id, error) &&
              sp_db_commit_auto(&tx, error);
    sp_sandbox_row_free(s);
    if (!ok)
        return false;
    sp_topics_add(topics, SP_TOPIC_CONTROLLER);
    sp_topics_publish(store, topics);
    g_strlcpy(ret_operation_id, replay.operation_id, SP_ID_MAX);
    return true;
}
