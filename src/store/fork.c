/*
 * fork: one snapshot of the origin that no user sees, and the children that are made from it,
 * written together. The children's node hears of them when the snapshot is ready (desired.c); when
 * no child needs it any more it goes by itself (sp_tx_snapshots_release()).
 */
#include <string.h>

#include "base/error.h"
#include "store/internal.h"

static bool insert_child(struct sp_db_tx *tx, const struct sp_sandbox_row *of,
                         const char *snapshot_id, int64_t revision, struct sp_fork_child *ret,
                         GError **error)
{
    struct sp_fork_child child;
    sp_id_new("sbx", child.sandbox_id);
    struct sp_operation_new op = {.tenant = of->tenant,
                                  .sandbox_id = child.sandbox_id,
                                  .snapshot_id = snapshot_id,
                                  .kind = SP_OPERATION_FORK,
                                  .generation = 1};
    if (!sp_tx_operation_insert(tx, &op, child.operation_id, error))
        return false;
    /* No name: it would be the host name of all of them. */
    struct sp_sandbox_insert row = {.id = child.sandbox_id,
                                    .operation_id = child.operation_id,
                                    .tenant = of->tenant,
                                    .node = of->node,
                                    .revision = revision,
                                    .template_ref = of->template_ref,
                                    .template_digest = of->template_digest,
                                    .isolation_reason = "as the sandbox it was forked from",
                                    .user = of->user,
                                    .env = of->env,
                                    .metadata = of->metadata,
                                    .network = of->network,
                                    .isolation = of->isolation,
                                    .resources = &of->resources,
                                    .idle_timeout_ms = of->idle_timeout_ms,
                                    .max_lifetime_ms = of->max_lifetime_ms,
                                    .on_idle = of->on_idle,
                                    .parent_snapshot_id = of->head_snapshot_id,
                                    .saved_from = snapshot_id,
                                    .fork_snapshot_id = snapshot_id};
    if (!sp_tx_sandbox_insert(tx, &row, error))
        return false;
    *ret = child;
    return true;
}

static gint by_id(gconstpointer a, gconstpointer b)
{
    const struct sp_fork_child *x = a, *y = b;
    return strcmp(x->sandbox_id, y->sandbox_id);
}

static bool fork_in(struct sp_db_tx *tx, const struct sp_sandbox_row *s,
                    const struct sp_fork_request *request, char ret_snapshot_id[SP_ID_MAX],
                    GArray *children, GError **error)
{
    struct sp_snapshot_insert row = {.id = ret_snapshot_id};
    int64_t revision;
    sp_id_new("snp", ret_snapshot_id);
    if (!sp_tx_check_save(tx, s, SP_CHANGE_FORK, request->memory, &row.memory, error) ||
        !sp_tx_bump_revision(tx, &revision, error))
        return false;
    row.revision = revision;
    if (!sp_tx_snapshot_insert(tx, s, &row, error))
        return false;
    for (int64_t i = 0; i < request->count; i++) {
        struct sp_fork_child child;
        if (!insert_child(tx, s, ret_snapshot_id, revision, &child, error))
            return false;
        g_array_append_val(children, child);
    }
    g_array_sort(children, by_id); /* the order in which a repeated request finds them */
    return true;
}

static bool find_children(struct sp_db_tx *tx, const char *snapshot_id, GArray *children,
                          GError **error)
{
    SP_DB_ROWS_AUTO *rows =
        sp_db_query(tx, error,
                    "SELECT s.id, o.id FROM sandboxes s JOIN operations o ON o.sandbox_id = s.id"
                    " AND o.kind = 'fork' WHERE s.fork_snapshot_id = $1 ORDER BY s.id",
                    "t", snapshot_id);
    int got = rows ? 1 : -1;
    while (rows && (got = sp_db_next(rows, error)) > 0) {
        struct sp_fork_child child;
        g_strlcpy(child.sandbox_id, sp_db_text(rows, 0), SP_ID_MAX);
        g_strlcpy(child.operation_id, sp_db_text(rows, 1), SP_ID_MAX);
        g_array_append_val(children, child);
    }
    return got == 0;
}

bool sp_store_sandbox_fork(struct sp_store *store, const char *tenant, const char *id,
                           const struct sp_fork_request *request, const struct sp_idempotency *idem,
                           GArray **ret_children, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    struct sp_replay replay;
    struct sp_sandbox_row *s = NULL;
    g_autoptr(GArray) children = g_array_new(FALSE, FALSE, sizeof(struct sp_fork_child));
    if (!tx || !sp_tx_replay_find(tx, idem, &replay, error))
        return false;
    if (replay.found) {
        if (!find_children(tx, replay.resource_id, children, error))
            return false;
        *ret_children = g_steal_pointer(&children);
        return true;
    }
    bool ok = sp_tx_sandbox_live(tx, tenant, id, &s, error) &&
              fork_in(tx, s, request, replay.resource_id, children, error) &&
              sp_tx_sandbox_touch(tx, id, error) &&
              sp_tx_replay_record(tx, idem, replay.resource_id, "", error) &&
              sp_db_commit_auto(&tx, error);
    if (ok) {
        g_autofree char *topic = sp_store_node_topic(s->node);
        sp_store_publish(store, topic);
        sp_store_publish(store, SP_TOPIC_CONTROLLER);
        *ret_children = g_steal_pointer(&children);
    }
    sp_sandbox_row_free(s);
    return ok;
}
