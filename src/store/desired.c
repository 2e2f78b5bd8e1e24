#include "store/internal.h"

enum sp_desired sp_sandbox_wire_desired(const struct sp_sandbox_row *sandbox)
{
    return sandbox->state == SP_STATE_FAILED ? SP_DESIRED_DELETED : sandbox->desired;
}

void sp_desired_set_clear(struct sp_desired_set *set)
{
    g_clear_pointer(&set->sandboxes, g_ptr_array_unref);
    g_clear_pointer(&set->builds, g_ptr_array_unref);
    g_clear_pointer(&set->snapshots, g_ptr_array_unref);
}

static bool read_revision(struct sp_db_tx *tx, int64_t *ret, GError **error)
{
    SP_DB_ROWS_AUTO *rows =
        sp_db_query(tx, error, "SELECT value FROM counters WHERE name = 'revision'", "");
    if (!rows || sp_db_next(rows, error) != 1)
        return false;
    *ret = sp_db_int(rows, 0);
    return true;
}

static GPtrArray *read_builds(struct sp_db_tx *tx, const char *node, int64_t after, GError **error)
{
    SP_DB_ROWS_AUTO *rows =
        sp_db_query(tx, error,
                    "SELECT id, name, tag, recipe, operation_id, ref, no_cache FROM builds"
                    " WHERE node = $1 AND revision > $2 AND state IN ('pending', 'running')"
                    " ORDER BY revision",
                    "ti", node, after);
    if (!rows)
        return NULL;
    g_autoptr(GPtrArray) list = g_ptr_array_new_with_free_func((GDestroyNotify)sp_build_row_free);
    int got;
    while ((got = sp_db_next(rows, error)) > 0) {
        struct sp_build_row *b = g_new0(struct sp_build_row, 1);
        b->id = g_strdup(sp_db_text(rows, 0));
        b->name = g_strdup(sp_db_text(rows, 1));
        b->tag = g_strdup(sp_db_text(rows, 2));
        b->recipe = g_strdup(sp_db_text(rows, 3));
        b->operation_id = g_strdup(sp_db_text(rows, 4));
        b->ref = g_strdup(sp_db_text(rows, 5));
        b->no_cache = sp_db_int(rows, 6) != 0;
        g_ptr_array_add(list, b);
    }
    return got < 0 ? NULL : g_steal_pointer(&list);
}

static GPtrArray *read_snapshots(struct sp_db_tx *tx, const char *node, int64_t after,
                                 GError **error)
{
    return sp_snapshot_rows_read(
        sp_db_query(tx, error,
                    SP_SNAPSHOT_SELECT
                    "WHERE n.node = $1 AND n.revision > $2 AND (n.state = 'creating' OR"
                    " (n.wanted = 'deleted' AND n.deleted_at = 0)) ORDER BY n.revision",
                    "ti", node, after),
        error);
}

bool sp_store_desired(struct sp_store *store, const char *node, int64_t after,
                      struct sp_desired_set *ret, GError **error)
{
    /* One snapshot: no change can be between the revision and the rows. */
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    struct sp_desired_set set = {0};
    if (!tx || !read_revision(tx, &set.revision, error))
        return false;
    set.sandboxes = sp_sandbox_rows_read(
        sp_db_query(tx, error,
                    SP_SANDBOX_SELECT
                    "WHERE s.node = $1 AND s.revision > $2 AND s.state <> 'deleted' AND NOT"
                    " (s.state = 'creating' AND s.desired_state <> 'deleted' AND EXISTS"
                    " (SELECT 1 FROM snapshots n WHERE n.id = s.saved_from"
                    " AND n.state = 'creating')) ORDER BY s.revision",
                    "ti", node, after),
        error);
    if (set.sandboxes)
        set.builds = read_builds(tx, node, after, error);
    if (set.builds)
        set.snapshots = read_snapshots(tx, node, after, error);
    if (!set.snapshots) {
        sp_desired_set_clear(&set);
        return false;
    }
    *ret = set;
    return true;
}

GPtrArray *sp_store_desired_of(struct sp_store *store, const char *node, char *const *ids,
                               GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    if (!tx)
        return NULL;
    g_autoptr(GPtrArray) list = g_ptr_array_new_with_free_func((GDestroyNotify)sp_sandbox_row_free);
    for (; *ids; ids++) {
        struct sp_sandbox_row *s = NULL;
        if (!sp_tx_sandbox(tx, *ids, &s, error))
            return NULL;
        if (s && g_strcmp0(s->node, node) == 0)
            g_ptr_array_add(list, s);
        else
            sp_sandbox_row_free(s);
    }
    return g_steal_pointer(&list);
}
