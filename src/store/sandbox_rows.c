/* Rows of sandboxes: reading them, finding one inside a transaction. */
#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "store/internal.h"

void sp_sandbox_row_free(struct sp_sandbox_row *s)
{
    if (!s)
        return;
    g_free(s->id);
    g_free(s->tenant);
    g_free(s->name);
    g_free(s->node);
    g_free(s->state_reason);
    g_free(s->operation_id);
    g_free(s->template_ref);
    g_free(s->template_digest);
    g_free(s->isolation_reason);
    g_free(s->user);
    g_free(s->parent_snapshot_id);
    g_free(s->saved_from);
    g_free(s->head_snapshot_id);
    g_free(s->rollback_snapshot_id);
    g_free(s->env);
    g_free(s->metadata);
    g_free(s->network);
    g_free(s);
}

static int on_idle_of(const char *name)
{
    for (int i = 0; sp_on_idle_names[i]; i++) {
        if (g_strcmp0(name, sp_on_idle_names[i]) == 0)
            return i;
    }
    return SP_ON_IDLE_NONE;
}

/* The columns in the order of SP_SANDBOX_SELECT. */
struct sp_sandbox_row *sp_sandbox_row_read(struct sp_db_rows *rows)
{
    struct sp_sandbox_row *s = g_new0(struct sp_sandbox_row, 1);
    unsigned c = 0;
    s->id = g_strdup(sp_db_text(rows, c++));
    s->tenant = g_strdup(sp_db_text(rows, c++));
    s->name = g_strdup(sp_db_text(rows, c++));
    s->node = g_strdup(sp_db_text(rows, c++));
    sp_state_parse(sp_db_text(rows, c++), &s->state);
    sp_desired_parse(sp_db_text(rows, c++), &s->desired);
    s->state_reason = g_strdup(sp_db_text(rows, c++));
    s->generation = sp_db_int(rows, c++);
    s->revision = sp_db_int(rows, c++);
    s->operation_id = g_strdup(sp_db_text(rows, c++));
    s->template_ref = g_strdup(sp_db_text(rows, c++));
    s->template_digest = g_strdup(sp_db_text(rows, c++));
    sp_isolation_parse(sp_db_text(rows, c++), &s->isolation);
    s->isolation_reason = g_strdup(sp_db_text(rows, c++));
    s->resources.cpus = (double)sp_db_int(rows, c++) / 1000;
    s->resources.memory_mb = sp_db_int(rows, c++);
    s->resources.disk_mb = sp_db_int(rows, c++);
    s->resources.pids = sp_db_int(rows, c++);
    s->user = g_strdup(sp_db_text(rows, c++));
    s->env = g_strdup(sp_db_text(rows, c++));
    s->metadata = g_strdup(sp_db_text(rows, c++));
    s->network = g_strdup(sp_db_text(rows, c++));
    s->idle_timeout_ms = sp_db_int(rows, c++);
    s->on_idle = on_idle_of(sp_db_text(rows, c++));
    s->max_lifetime_ms = sp_db_int(rows, c++);
    s->parent_snapshot_id = g_strdup(sp_db_text(rows, c++));
    s->created_at_ms = sp_db_int(rows, c++);
    s->started_at_ms = sp_db_int(rows, c++);
    s->last_active_at_ms = sp_db_int(rows, c++);
    s->deleted_at_ms = sp_db_int(rows, c++);
    s->suspend_memory = sp_db_int(rows, c++) != 0;
    s->saved_from = g_strdup(sp_db_text(rows, c++));
    s->head_snapshot_id = g_strdup(sp_db_text(rows, c++));
    s->rollback_snapshot_id = g_strdup(sp_db_text(rows, c++));
    s->rollback_generation = sp_db_int(rows, c++);
    s->attached = sp_db_int(rows, c++);
    s->cpu_milli = sp_db_int(rows, c++);
    s->activity_at_ms = sp_db_int(rows, c++);
    s->live_sessions = sp_db_int(rows, c++);
    return s;
}

GPtrArray *sp_sandbox_rows_read(struct sp_db_rows *taken, GError **error)
{
    SP_DB_ROWS_AUTO *rows = taken;
    if (!rows)
        return NULL;
    g_autoptr(GPtrArray) list = g_ptr_array_new_with_free_func((GDestroyNotify)sp_sandbox_row_free);
    int got;
    while ((got = sp_db_next(rows, error)) > 0)
        g_ptr_array_add(list, sp_sandbox_row_read(rows));
    return got < 0 ? NULL : g_steal_pointer(&list);
}

bool sp_tx_sandbox(struct sp_db_tx *tx, const char *id, struct sp_sandbox_row **ret, GError **error)
{
    SP_DB_ROWS_AUTO *rows = sp_db_query(tx, error, SP_SANDBOX_SELECT "WHERE s.id = $1", "t", id);
    int got = rows ? sp_db_next(rows, error) : -1;
    if (got < 0)
        return false;
    *ret = got > 0 ? sp_sandbox_row_read(rows) : NULL;
    return true;
}

bool sp_tx_sandbox_live(struct sp_db_tx *tx, const char *tenant, const char *id,
                        struct sp_sandbox_row **ret, GError **error)
{
    struct sp_sandbox_row *s = NULL;
    if (!sp_tx_sandbox(tx, id, &s, error))
        return false;
    if (!s || s->state == SP_STATE_DELETED || (tenant && strcmp(tenant, s->tenant) != 0)) {
        sp_sandbox_row_free(s);
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no sandbox %s", id);
        return false;
    }
    *ret = s;
    return true;
}

bool sp_tx_sandbox_touch(struct sp_db_tx *tx, const char *id, GError **error)
{
    return sp_db_run(tx, NULL, error,
                     "UPDATE sandboxes SET last_active_at = $2 WHERE id = $1 AND"
                     " last_active_at < $2",
                     "ti", id, sp_time_now_ms());
}
