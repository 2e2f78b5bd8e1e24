/* What the API does with sandboxes; lifecycle.c deletes them, transition.c changes their state. */
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/time.h"
#include "store/internal.h"

#define TOUCH_EVERY_MS 5000

static bool put_metadata(struct sp_db_tx *tx, const char *id, char *const *pairs, GError **error)
{
    if (!sp_db_run(tx, NULL, error, "DELETE FROM sandbox_metadata WHERE sandbox_id = $1", "t", id))
        return false;
    for (; pairs && *pairs; pairs++) {
        const char *eq = strchr(*pairs, '=');
        g_autofree char *name = g_strndup(*pairs, (gsize)(eq - *pairs));
        if (!sp_db_run(tx, NULL, error,
                       "INSERT INTO sandbox_metadata (sandbox_id, name, value) VALUES ($1, $2, $3)",
                       "ttt", id, name, eq + 1))
            return false;
    }
    return true;
}

static char *map_text(char *const *pairs)
{
    g_autoptr(json_t) map = sp_json_from_map(pairs);
    return sp_json_dump(map);
}

static char *network_text(char *const *allow, bool deny_private)
{
    g_autoptr(json_t) network = json_object();
    json_object_set_new(network, "allow", sp_json_from_strv(allow));
    json_object_set_new(network, "deny_private", json_boolean(deny_private));
    return sp_json_dump(network);
}

/* The metadata table, which filters use, from the column's JSON. */
static bool index_metadata(struct sp_db_tx *tx, const char *id, const char *metadata,
                           GError **error)
{
    g_autoptr(json_t) map = sp_json_parse(metadata, strlen(metadata), NULL);
    const char *name;
    json_t *value;
    json_object_foreach(map, name, value)
    {
        if (!sp_db_run(tx, NULL, error,
                       "INSERT INTO sandbox_metadata (sandbox_id, name, value) VALUES ($1, $2, $3)",
                       "ttt", id, name, json_string_value(value)))
            return false;
    }
    return true;
}

bool sp_tx_sandbox_insert(struct sp_db_tx *tx, const struct sp_sandbox_insert *r, GError **error)
{
    return sp_db_run(
               tx, NULL, error,
               "INSERT INTO sandboxes (id, tenant, name, node, state, desired_state, generation,"
               " revision, operation_id, template, template_digest, isolation, isolation_reason,"
               " cpus_milli, memory_mb, disk_mb, pids, user_name, env, metadata, network,"
               " idle_timeout_ms, on_idle, max_lifetime_ms, created_at, last_active_at,"
               " parent_snapshot_id, head_snapshot_id, saved_from, fork_snapshot_id)"
               " VALUES ($1, $2, $3, $4, 'creating', 'running', 1, $5, $6, $7, $8, $9, $10, $11,"
               " $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $22, $23, $23, $24, $25)",
               "ttttittttt"
               "iiiitttt"
               "itii"
               "ttt",
               r->id, r->tenant, r->name, r->node, r->revision, r->operation_id, r->template_ref,
               r->template_digest, sp_isolation_names[r->isolation], r->isolation_reason,
               (int64_t)(r->resources->cpus * 1000 + 0.5), r->resources->memory_mb,
               r->resources->disk_mb, r->resources->pids, r->user, r->env, r->metadata, r->network,
               r->idle_timeout_ms, sp_on_idle_names[r->on_idle], r->max_lifetime_ms,
               sp_time_now_ms(), r->parent_snapshot_id, r->saved_from, r->fork_snapshot_id) &&
           index_metadata(tx, r->id, r->metadata, error);
}

/* The snapshot's variables and over them those of the request. */
static char *env_over(const char *below, char *const *env)
{
    g_autoptr(json_t) map = sp_json_parse(below, strlen(below), NULL);
    g_autoptr(json_t) over = sp_json_from_map(env);
    if (!json_is_object(map))
        return sp_json_dump(over);
    json_object_update(map, over);
    return sp_json_dump(map);
}

/* The snapshot may have gone since the caller has read it. */
static bool still_ready(struct sp_db_tx *tx, const struct sp_snapshot_row *seen, GError **error)
{
    struct sp_snapshot_row *now = NULL;
    if (!seen)
        return true;
    if (!sp_tx_snapshot(tx, seen->id, &now, error))
        return false;
    bool ready = now && now->state == SP_SNAPSHOT_READY && now->wanted;
    if (!ready)
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION, "snapshot %s is %s, not ready",
                    seen->id, now ? sp_snapshot_state_names[now->state] : "deleted");
    sp_snapshot_row_free(now);
    return ready;
}

static bool insert(struct sp_db_tx *tx, const struct sp_sandbox_new *new,
                   const struct sp_replay *ids, int64_t revision, GError **error)
{
    const struct sp_sandbox_request *r = new->request;
    const struct sp_snapshot_row *from = new->snapshot;
    g_autofree char *env = from ? env_over(from->env, r->env) : map_text(r->env);
    g_autofree char *metadata = map_text(r->metadata);
    g_autofree char *network = network_text(r->network_allow, r->deny_private);
    struct sp_sandbox_insert row = {.id = ids->resource_id,
                                    .operation_id = ids->operation_id,
                                    .tenant = new->tenant,
                                    .node = new->node,
                                    .revision = revision,
                                    .name = r->name,
                                    .template_ref = from ? from->template_ref : r->template_ref,
                                    .template_digest = new->template_digest,
                                    .isolation = new->isolation,
                                    .isolation_reason = new->isolation_reason,
                                    .resources = from ? &from->resources : &r->resources,
                                    .user = from && !r->user ? from->user : r->user,
                                    .env = env,
                                    .metadata = metadata,
                                    .network = network,
                                    .idle_timeout_ms = r->idle_timeout_ms,
                                    .on_idle = r->on_idle,
                                    .max_lifetime_ms = r->max_lifetime_ms,
                                    .parent_snapshot_id = from ? from->id : NULL,
                                    .saved_from = from ? from->id : NULL};
    return sp_tx_sandbox_insert(tx, &row, error);
}

bool sp_store_sandbox_create(struct sp_store *store, const struct sp_sandbox_new *sandbox,
                             const struct sp_idempotency *idem, struct sp_replay *ret,
                             GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    struct sp_replay replay;
    if (!tx || !sp_tx_replay_find(tx, idem, &replay, error))
        return false;
    if (replay.found) {
        *ret = replay;
        return true;
    }
    sp_id_new("sbx", replay.resource_id);
    struct sp_operation_new op = {.tenant = sandbox->tenant,
                                  .sandbox_id = replay.resource_id,
                                  .snapshot_id = sandbox->snapshot ? sandbox->snapshot->id : NULL,
                                  .kind = SP_OPERATION_CREATE,
                                  .generation = 1};
    int64_t revision;
    if (!still_ready(tx, sandbox->snapshot, error) || !sp_tx_bump_revision(tx, &revision, error) ||
        !sp_tx_operation_insert(tx, &op, replay.operation_id, error) ||
        !insert(tx, sandbox, &replay, revision, error) ||
        !sp_tx_replay_record(tx, idem, replay.resource_id, replay.operation_id, error) ||
        !sp_db_commit_auto(&tx, error))
        return false;
    g_autofree char *topic = sp_store_node_topic(sandbox->node);
    sp_store_publish(store, topic);
    sp_store_publish(store, SP_TOPIC_CONTROLLER);
    *ret = replay;
    return true;
}

struct sp_sandbox_row *sp_store_sandbox_get_any(struct sp_store *store, const char *tenant,
                                                const char *id, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    struct sp_sandbox_row *s = NULL;
    if (!tx || !sp_tx_sandbox(tx, id, &s, error))
        return NULL;
    if (!s || (tenant && strcmp(tenant, s->tenant) != 0)) {
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no sandbox %s", id);
        g_clear_pointer(&s, sp_sandbox_row_free);
    }
    return s;
}

struct sp_sandbox_row *sp_store_sandbox_get(struct sp_store *store, const char *tenant,
                                            const char *id, GError **error)
{
    struct sp_sandbox_row *s = sp_store_sandbox_get_any(store, tenant, id, error);
    if (s && s->state == SP_STATE_DELETED) {
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no sandbox %s", id);
        g_clear_pointer(&s, sp_sandbox_row_free);
    }
    return s;
}

void sp_sandbox_set_not_running(GError **error, enum sp_state state)
{
    bool wake = state == SP_STATE_PAUSED || state == SP_STATE_SUSPENDED;
    g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION, "the sandbox is %s, not running%s",
                sp_state_names[state], wake ? "; wake it first (POST …/wake)" : "");
}

GPtrArray *sp_store_sandbox_list(struct sp_store *store, const struct sp_sandbox_filter *filter,
                                 GError **error)
{
    g_autoptr(GString) sql =
        g_string_new(SP_SANDBOX_SELECT
                     "WHERE s.tenant = $1 AND s.state <> 'deleted' AND ($2 = '' OR s.state = $2)"
                     " AND ($3 = '' OR s.template = $3 OR s.template_digest = $3)"
                     " AND ($4 = '' OR s.id < $4)");
    struct sp_db_value values[5 + 2 * SP_MAX_METADATA_FILTERS] = {
        {SP_DB_TEXT, 0, filter->tenant},
        {SP_DB_TEXT, 0, filter->state ? filter->state : ""},
        {SP_DB_TEXT, 0, filter->template_ref ? filter->template_ref : ""},
        {SP_DB_TEXT, 0, filter->before_id ? filter->before_id : ""},
        {SP_DB_INT, filter->limit, NULL},
    };
    unsigned n = 5;
    for (unsigned i = 0; i < filter->n_metadata; i++, n += 2) {
        g_string_append_printf(sql,
                               " AND EXISTS (SELECT 1 FROM sandbox_metadata m WHERE m.sandbox_id ="
                               " s.id AND m.name = $%u AND m.value = $%u)",
                               n + 1, n + 2);
        values[n] = (struct sp_db_value){SP_DB_TEXT, 0, filter->metadata_keys[i]};
        values[n + 1] = (struct sp_db_value){SP_DB_TEXT, 0, filter->metadata_values[i]};
    }
    g_string_append(sql, " ORDER BY s.id DESC LIMIT $5");

    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    if (!tx)
        return NULL;
    return sp_sandbox_rows_read(sp_db_query_values(tx, error, sql->str, values, n), error);
}

static bool update_patch(struct sp_db_tx *tx, const char *id, const struct sp_sandbox_patch *patch,
                         GError **error)
{
    g_autofree char *metadata = patch->metadata ? map_text(patch->metadata) : NULL;
    g_autofree char *network =
        patch->network_set ? network_text(patch->network_allow, patch->deny_private) : NULL;
    return sp_db_run(tx, NULL, error,
                     "UPDATE sandboxes SET name = COALESCE($2, name),"
                     " metadata = COALESCE($3, metadata), on_idle = COALESCE($4, on_idle),"
                     " idle_timeout_ms = CASE WHEN $5 > 0 THEN $5 ELSE idle_timeout_ms END,"
                     " max_lifetime_ms = CASE WHEN $6 > 0 THEN $6 ELSE max_lifetime_ms END,"
                     " last_active_at = $7, network = COALESCE($8, network) WHERE id = $1",
                     "ttttiiit", id, patch->name, metadata,
                     patch->on_idle_set ? sp_on_idle_names[patch->on_idle] : NULL,
                     patch->idle_timeout_ms, patch->max_lifetime_ms, sp_time_now_ms(), network) &&
           (!patch->metadata || put_metadata(tx, id, patch->metadata, error));
}

bool sp_store_sandbox_patch(struct sp_store *store, const char *tenant, const char *id,
                            const struct sp_sandbox_patch *patch, const struct sp_idempotency *idem,
                            GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    struct sp_replay replay;
    struct sp_sandbox_row *s = NULL;
    if (!tx || !sp_tx_replay_find(tx, idem, &replay, error))
        return false;
    if (replay.found)
        return true;
    if (!sp_tx_sandbox_live(tx, tenant, id, &s, error))
        return false;
    bool deleting = s->desired == SP_DESIRED_DELETED;
    sp_sandbox_row_free(s);
    if (deleting) {
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION, "sandbox %s is being deleted",
                    id);
        return false;
    }
    if (!update_patch(tx, id, patch, error) || !sp_tx_replay_record(tx, idem, id, "", error) ||
        !sp_db_commit_auto(&tx, error))
        return false;
    sp_store_publish(store, SP_TOPIC_CONTROLLER);
    return true;
}

void sp_store_sandbox_touch(struct sp_store *store, const struct sp_sandbox_row *seen)
{
    int64_t now = sp_time_now_ms();
    if (now < seen->last_active_at_ms + TOUCH_EVERY_MS)
        return;
    /* Losing one touch is harmless: the next request writes it. */
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, NULL);
    if (tx && sp_tx_sandbox_touch(tx, seen->id, NULL))
        sp_db_commit_auto(&tx, NULL);
}

bool sp_store_sandbox_counts(struct sp_store *store, int64_t *ret_counts, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    if (!tx)
        return false;
    SP_DB_ROWS_AUTO *rows = sp_db_query(
        tx, error, "SELECT state, COUNT(*) FROM sandboxes WHERE state <> 'deleted' GROUP BY state",
        "");
    if (!rows)
        return false;
    int64_t counts[SP_N_STATES] = {0};
    int got;
    while ((got = sp_db_next(rows, error)) > 0) {
        enum sp_state state;
        if (sp_state_parse(sp_db_text(rows, 0), &state))
            counts[state] = sp_db_int(rows, 1);
    }
    if (got == 0)
        memcpy(ret_counts, counts, sizeof counts);
    return got == 0;
}
