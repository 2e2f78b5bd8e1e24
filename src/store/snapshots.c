/* Rows of snapshots, and what the API does with them; what workers say is in snapshot_reports.c. */
#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "store/internal.h"

const char *const sp_snapshot_state_names[SP_N_SNAPSHOT_STATES + 1] = {
    [SP_SNAPSHOT_CREATING] = "creating", [SP_SNAPSHOT_READY] = "ready",
    [SP_SNAPSHOT_FAILED] = "failed",     [SP_SNAPSHOT_DELETING] = "deleting",
    [SP_SNAPSHOT_DELETED] = "deleted",
};

void sp_snapshot_row_free(struct sp_snapshot_row *n)
{
    if (!n)
        return;
    g_free(n->id);
    g_free(n->tenant);
    g_free(n->name);
    g_free(n->sandbox_id);
    g_free(n->parent_id);
    g_free(n->node);
    g_free(n->operation_id);
    g_free(n->delete_operation_id);
    g_free(n->template_ref);
    g_free(n->template_digest);
    g_free(n->user);
    g_free(n->env);
    g_free(n->error_code);
    g_free(n->error_message);
    g_free(n);
}

static enum sp_snapshot_state state_of(const char *name)
{
    for (int i = 0; i < SP_N_SNAPSHOT_STATES; i++) {
        if (g_strcmp0(name, sp_snapshot_state_names[i]) == 0)
            return (enum sp_snapshot_state)i;
    }
    return SP_SNAPSHOT_FAILED;
}

/* The columns in the order of SP_SNAPSHOT_SELECT. */
static struct sp_snapshot_row *read_row(struct sp_db_rows *rows)
{
    struct sp_snapshot_row *n = g_new0(struct sp_snapshot_row, 1);
    char **const texts[] = {&n->id,           &n->tenant,
                            &n->name,         &n->sandbox_id,
                            &n->parent_id,    &n->node,
                            &n->operation_id, &n->delete_operation_id,
                            &n->template_ref, &n->template_digest,
                            &n->user,         &n->env,
                            &n->error_code,   &n->error_message};
    unsigned c = 0;
    for (; c < G_N_ELEMENTS(texts); c++)
        *texts[c] = g_strdup(sp_db_text(rows, c));
    n->state = state_of(sp_db_text(rows, c++));
    sp_isolation_parse(sp_db_text(rows, c++), &n->isolation);
    n->resources.cpus = (double)sp_db_int(rows, c++) / 1000;
    n->resources.memory_mb = sp_db_int(rows, c++);
    n->resources.disk_mb = sp_db_int(rows, c++);
    n->resources.pids = sp_db_int(rows, c++);
    n->memory = sp_db_int(rows, c++) != 0;
    n->durable = sp_db_int(rows, c++) != 0;
    n->wanted = g_strcmp0(sp_db_text(rows, c++), "ready") == 0;
    n->revision = sp_db_int(rows, c++);
    n->size_bytes = sp_db_int(rows, c++);
    n->created_at_ms = sp_db_int(rows, c++);
    n->ready_at_ms = sp_db_int(rows, c++);
    n->deleted_at_ms = sp_db_int(rows, c++);
    return n;
}

GPtrArray *sp_snapshot_rows_read(struct sp_db_rows *taken, GError **error)
{
    SP_DB_ROWS_AUTO *rows = taken;
    if (!rows)
        return NULL;
    g_autoptr(GPtrArray) list =
        g_ptr_array_new_with_free_func((GDestroyNotify)sp_snapshot_row_free);
    int got;
    while ((got = sp_db_next(rows, error)) > 0)
        g_ptr_array_add(list, read_row(rows));
    return got < 0 ? NULL : g_steal_pointer(&list);
}

bool sp_tx_snapshot(struct sp_db_tx *tx, const char *id, struct sp_snapshot_row **ret,
                    GError **error)
{
    SP_DB_ROWS_AUTO *rows = sp_db_query(tx, error, SP_SNAPSHOT_SELECT "WHERE n.id = $1", "t", id);
    int got = rows ? sp_db_next(rows, error) : -1;
    if (got < 0)
        return false;
    *ret = got > 0 ? read_row(rows) : NULL;
    return true;
}

bool sp_tx_snapshot_insert(struct sp_db_tx *tx, const struct sp_sandbox_row *of,
                           const struct sp_snapshot_insert *r, GError **error)
{
    return sp_db_run(
        tx, NULL, error,
        "INSERT INTO snapshots (id, tenant, name, sandbox_id, parent_id, node, memory, durable,"
        " state, wanted, revision, operation_id, isolation, template, template_digest, cpus_milli,"
        " memory_mb, disk_mb, pids, user_name, env, created_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'creating', 'ready', $9, $10, $11, $12, $13, $14,"
        " $15, $16, $17, $18, $19, $20)",
        "tttttt"
        "iiitttt"
        "iiiitti",
        r->id, of->tenant, r->name, of->id, of->head_snapshot_id, of->node, (int64_t)r->memory,
        (int64_t)r->durable, r->revision, r->operation_id, sp_isolation_names[of->isolation],
        of->template_ref, of->template_digest, (int64_t)(of->resources.cpus * 1000 + 0.5),
        of->resources.memory_mb, of->resources.disk_mb, of->resources.pids, of->user, of->env,
        sp_time_now_ms());
}

static bool create_in(struct sp_db_tx *tx, const struct sp_sandbox_row *s,
                      const struct sp_snapshot_request *request, struct sp_replay *made,
                      GError **error)
{
    struct sp_snapshot_insert row = {.id = made->resource_id,
                                     .name = request->name,
                                     .operation_id = made->operation_id,
                                     .durable = true};
    struct sp_operation_new op = {.tenant = s->tenant,
                                  .sandbox_id = s->id,
                                  .snapshot_id = made->resource_id,
                                  .kind = SP_OPERATION_SNAPSHOT,
                                  .generation = s->generation};
    int64_t revision;
    sp_id_new("snp", made->resource_id);
    if (!sp_tx_check_save(tx, s, SP_CHANGE_SNAPSHOT, request->memory, &row.memory, error) ||
        !sp_tx_bump_revision(tx, &revision, error) ||
        !sp_tx_operation_insert(tx, &op, made->operation_id, error))
        return false;
    row.revision = revision;
    return sp_tx_snapshot_insert(tx, s, &row, error);
}

bool sp_store_snapshot_create(struct sp_store *store, const char *tenant, const char *sandbox_id,
                              const struct sp_snapshot_request *request,
                              const struct sp_idempotency *idem, struct sp_replay *ret,
                              GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    struct sp_replay replay;
    struct sp_sandbox_row *s = NULL;
    if (!tx || !sp_tx_replay_find(tx, idem, &replay, error))
        return false;
    if (replay.found) {
        *ret = replay;
        return true;
    }
    bool ok = sp_tx_sandbox_live(tx, tenant, sandbox_id, &s, error) &&
              create_in(tx, s, request, &replay, error) &&
              sp_tx_sandbox_touch(tx, sandbox_id, error) &&
              sp_tx_replay_record(tx, idem, replay.resource_id, replay.operation_id, error) &&
              sp_db_commit_auto(&tx, error);
    if (ok) {
        g_autofree char *topic = sp_store_node_topic(s->node);
        sp_store_publish(store, topic);
        sp_store_publish(store, SP_TOPIC_CONTROLLER);
        *ret = replay;
    }
    sp_sandbox_row_free(s);
    return ok;
}

/* A user sees it unless it is another tenant's or a fork's own. */
static bool find_visible(struct sp_db_tx *tx, const char *tenant, const char *id,
                         struct sp_snapshot_row **ret, GError **error)
{
    struct sp_snapshot_row *n = NULL;
    if (!sp_tx_snapshot(tx, id, &n, error))
        return false;
    if (!n || !n->durable || (tenant && strcmp(tenant, n->tenant) != 0)) {
        sp_snapshot_row_free(n);
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no snapshot %s", id);
        return false;
    }
    *ret = n;
    return true;
}

struct sp_snapshot_row *sp_store_snapshot_get(struct sp_store *store, const char *tenant,
                                              const char *id, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    struct sp_snapshot_row *n = NULL;
    if (!tx || !find_visible(tx, tenant, id, &n, error))
        return NULL;
    if (n->state == SP_SNAPSHOT_DELETED) {
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no snapshot %s", id);
        g_clear_pointer(&n, sp_snapshot_row_free);
    }
    return n;
}

GPtrArray *sp_store_snapshot_list(struct sp_store *store, const struct sp_snapshot_filter *filter,
                                  GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    if (!tx)
        return NULL;
    return sp_snapshot_rows_read(
        sp_db_query(tx, error,
                    SP_SNAPSHOT_SELECT
                    "WHERE n.tenant = $1 AND n.durable = 1 AND n.state IN ('creating', 'ready',"
                    " 'deleting') AND ($2 = '' OR n.sandbox_id = $2) AND ($3 = '' OR n.id < $3)"
                    " ORDER BY n.id DESC LIMIT $4",
                    "ttti", filter->tenant, filter->sandbox_id ? filter->sandbox_id : "",
                    filter->before_id ? filter->before_id : "", (int64_t)filter->limit),
        error);
}

static bool check_unused(struct sp_db_tx *tx, const char *id, GError **error)
{
    int64_t making, rollbacks;
    if (!sp_tx_count(tx,
                     "SELECT COUNT(*) FROM sandboxes WHERE saved_from = $1 AND state = 'creating'",
                     id, &making, error) ||
        !sp_tx_count(tx,
                     "SELECT COUNT(*) FROM sandboxes s JOIN operations o ON o.id = s.operation_id"
                     " WHERE s.rollback_snapshot_id = $1 AND o.kind = 'rollback'"
                     " AND o.state IN ('pending', 'running')",
                     id, &rollbacks, error))
        return false;
    if (making + rollbacks == 0)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_CONFLICT, "%s; try again when that has ended",
                making ? "a sandbox is being made from the snapshot"
                       : "a sandbox is being rolled back to the snapshot");
    return false;
}

/* What came from it comes from its parent now. */
static bool reparent(struct sp_db_tx *tx, const struct sp_snapshot_row *n, GError **error)
{
    static const char *const steps[] = {
        "UPDATE snapshots SET parent_id = $2 WHERE parent_id = $1",
        "UPDATE sandboxes SET parent_snapshot_id = $2 WHERE parent_snapshot_id = $1",
        "UPDATE sandboxes SET head_snapshot_id = $2 WHERE head_snapshot_id = $1",
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(steps); i++) {
        if (!sp_db_run(tx, NULL, error, steps[i], "tt", n->id, n->parent_id))
            return false;
    }
    return true;
}

static bool start_delete(struct sp_db_tx *tx, const struct sp_snapshot_row *n,
                         char ret_id[SP_ID_MAX], GPtrArray *topics, GError **error)
{
    int64_t revision;
    struct sp_operation_new op = {
        .tenant = n->tenant, .snapshot_id = n->id, .kind = SP_OPERATION_SNAPSHOT_DELETE};
    if (!check_unused(tx, n->id, error))
        return false;
    if (n->state == SP_SNAPSHOT_CREATING &&
        !sp_tx_snapshot_fail(tx, n, "conflict", "the snapshot was deleted before it was ready",
                             topics, error))
        return false;
    bool gone = n->deleted_at_ms != 0; /* it had failed, and nothing of it is left */
    if (!reparent(tx, n, error) || !sp_tx_bump_revision(tx, &revision, error) ||
        !sp_tx_operation_insert(tx, &op, ret_id, error) ||
        !sp_db_run(tx, NULL, error,
                   "UPDATE snapshots SET state = $2, wanted = 'deleted', revision = $3,"
                   " delete_operation_id = $4 WHERE id = $1",
                   "ttit", n->id, gone ? "deleted" : "deleting", revision, ret_id))
        return false;
    sp_topics_add_node(topics, n->node);
    return !gone || sp_tx_operation_end(tx, ret_id, NULL, NULL, NULL, error);
}

/* The operation of an earlier delete answers, unless it has failed and the snapshot is still there:
 * then the caller wants a new try. */
static bool find_delete(struct sp_db_tx *tx, const struct sp_snapshot_row *n,
                        char ret_id[SP_ID_MAX], GError **error)
{
    int64_t usable = 0;
    ret_id[0] = '\0';
    if (!n->delete_operation_id)
        return true;
    /* the record of a failed one is forgotten before its snapshot, whose node is away */
    if (!sp_tx_count(tx, "SELECT COUNT(*) FROM operations WHERE id = $1 AND state <> 'failed'",
                     n->delete_operation_id, &usable, error))
        return false;
    if (usable || n->state == SP_SNAPSHOT_DELETED)
        g_strlcpy(ret_id, n->delete_operation_id, SP_ID_MAX);
    return true;
}

bool sp_store_snapshot_delete(struct sp_store *store, const char *tenant, const char *id,
                              const struct sp_idempotency *idem, char ret_operation_id[SP_ID_MAX],
                              GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    struct sp_replay replay;
    struct sp_snapshot_row *n = NULL;
    char operation_id[SP_ID_MAX];
    g_autoptr(GPtrArray) topics = sp_topics_new();
    if (!tx || !sp_tx_replay_find(tx, idem, &replay, error))
        return false;
    bool ok = find_visible(tx, tenant, id, &n, error) && find_delete(tx, n, operation_id, error) &&
              (operation_id[0] || start_delete(tx, n, operation_id, topics, error)) &&
              (replay.found || sp_tx_replay_record(tx, idem, id, operation_id, error)) &&
              sp_db_commit_auto(&tx, error);
    sp_snapshot_row_free(n);
    if (!ok)
        return false;
    sp_topics_add(topics, SP_TOPIC_CONTROLLER);
    sp_topics_publish(store, topics);
    g_strlcpy(ret_operation_id, operation_id, SP_ID_MAX);
    return true;
}

bool sp_store_snapshot_counts(struct sp_store *store, int64_t *ret_counts, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    if (!tx)
        return false;
    SP_DB_ROWS_AUTO *rows = sp_db_query(
        tx, error, "SELECT state, COUNT(*) FROM snapshots WHERE durable = 1 GROUP BY state", "");
    if (!rows)
        return false;
    int64_t counts[SP_N_SNAPSHOT_STATES] = {0};
    int got;
    while ((got = sp_db_next(rows, error)) > 0)
        counts[state_of(sp_db_text(rows, 0))] += sp_db_int(rows, 1);
    if (got == 0)
        memcpy(ret_counts, counts, sizeof counts);
    return got == 0;
}
