#include "base/error.h"
#include "base/time.h"
#include "store/internal.h"

#define SELECT                                                                                     \
    "SELECT id, tenant, kind, state, sandbox_id, build_id, template, generation, error_code,"      \
    " error_message, steps, created_at, started_at, finished_at, snapshot_id FROM operations "

void sp_operation_row_free(struct sp_operation_row *operation)
{
    if (!operation)
        return;
    g_free(operation->id);
    g_free(operation->tenant);
    g_free(operation->sandbox_id);
    g_free(operation->build_id);
    g_free(operation->template_ref);
    g_free(operation->snapshot_id);
    g_free(operation->error_code);
    g_free(operation->error_message);
    g_free(operation->steps);
    g_free(operation);
}

static struct sp_operation_row *from_row(struct sp_db_rows *rows)
{
    struct sp_operation_row *op = g_new0(struct sp_operation_row, 1);
    op->id = g_strdup(sp_db_text(rows, 0));
    op->tenant = g_strdup(sp_db_text(rows, 1));
    sp_operation_kind_parse(sp_db_text(rows, 2), &op->kind);
    sp_operation_state_parse(sp_db_text(rows, 3), &op->state);
    op->sandbox_id = g_strdup(sp_db_text(rows, 4));
    op->build_id = g_strdup(sp_db_text(rows, 5));
    op->template_ref = g_strdup(sp_db_text(rows, 6));
    op->generation = sp_db_int(rows, 7);
    op->error_code = g_strdup(sp_db_text(rows, 8));
    op->error_message = g_strdup(sp_db_text(rows, 9));
    op->steps = g_strdup(sp_db_text(rows, 10));
    op->created_at_ms = sp_db_int(rows, 11);
    op->started_at_ms = sp_db_int(rows, 12);
    op->finished_at_ms = sp_db_int(rows, 13);
    op->snapshot_id = g_strdup(sp_db_text(rows, 14));
    return op;
}

struct sp_operation_row *sp_store_operation_get(struct sp_store *store, const char *tenant,
                                                const char *id, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    if (!tx)
        return NULL;
    SP_DB_ROWS_AUTO *rows = sp_db_query(tx, error, SELECT "WHERE id = $1", "t", id);
    int got = rows ? sp_db_next(rows, error) : -1;
    if (got < 0)
        return NULL;
    struct sp_operation_row *op = got > 0 ? from_row(rows) : NULL;
    if (!op || (tenant && g_strcmp0(tenant, op->tenant) != 0)) {
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no operation %s", id);
        sp_operation_row_free(op);
        return NULL;
    }
    return op;
}

GPtrArray *sp_store_operation_list(struct sp_store *store, const struct sp_operation_filter *filter,
                                   GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    if (!tx)
        return NULL;
    /* "" in place of NULL: PostgreSQL wants to know a parameter's type. */
    SP_DB_ROWS_AUTO *rows = sp_db_query(
        tx, error,
        SELECT "WHERE tenant = $1 AND ($2 = '' OR sandbox_id = $2) AND ($3 = '' OR state = $3)"
               " AND ($4 = '' OR kind = $4) AND ($5 = '' OR id < $5) ORDER BY id DESC LIMIT $6",
        "ttttti", filter->tenant, filter->sandbox_id ? filter->sandbox_id : "",
        filter->state ? filter->state : "", filter->kind ? filter->kind : "",
        filter->before_id ? filter->before_id : "", (int64_t)filter->limit);
    if (!rows)
        return NULL;
    g_autoptr(GPtrArray) list =
        g_ptr_array_new_with_free_func((GDestroyNotify)sp_operation_row_free);
    int got;
    while ((got = sp_db_next(rows, error)) > 0)
        g_ptr_array_add(list, from_row(rows));
    return got < 0 ? NULL : g_steal_pointer(&list);
}

bool sp_tx_operation_insert(struct sp_db_tx *tx, const struct sp_operation_new *op,
                            char ret_id[SP_ID_MAX], GError **error)
{
    sp_id_new("op", ret_id);
    return sp_db_run(tx, NULL, error,
                     "INSERT INTO operations (id, tenant, kind, state, sandbox_id, build_id,"
                     " template, generation, created_at, snapshot_id)"
                     " VALUES ($1, $2, $3, 'pending', $4, $5, $6, $7, $8, $9)",
                     "ttttttiit", ret_id, op->tenant, sp_operation_kind_names[op->kind],
                     op->sandbox_id, op->build_id, op->template_ref, op->generation,
                     sp_time_now_ms(), op->snapshot_id);
}

bool sp_tx_operation_end(struct sp_db_tx *tx, const char *id, const char *error_code,
                         const char *error_message, const char *steps, GError **error)
{
    int64_t now = sp_time_now_ms();
    return sp_db_run(tx, NULL, error,
                     "UPDATE operations SET state = $2, error_code = $3, error_message = $4,"
                     " steps = COALESCE($5, steps), finished_at = $6,"
                     " started_at = CASE WHEN started_at = 0 THEN $6 ELSE started_at END"
                     " WHERE id = $1 AND state IN ('pending', 'running')",
                     "ttttti", id, error_code ? "failed" : "succeeded", error_code, error_message,
                     steps, now);
}
