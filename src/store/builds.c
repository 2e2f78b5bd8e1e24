#include "base/error.h"
#include "base/json.h"
#include "base/time.h"
#include "store/internal.h"

#define MAX_LOG_BYTES (4 * 1024 * 1024)

void sp_build_row_free(struct sp_build_row *build)
{
    if (!build)
        return;
    g_free(build->id);
    g_free(build->node);
    g_free(build->ref);
    g_free(build->name);
    g_free(build->tag);
    g_free(build->operation_id);
    g_free(build->digest);
    g_free(build->recipe);
    g_free(build->log);
    g_free(build);
}

bool sp_store_build_create(struct sp_store *store, const char *tenant, const char *node,
                           const struct sp_template_request *request,
                           const struct sp_idempotency *idem, struct sp_replay *ret, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    struct sp_replay replay;
    if (!tx || !sp_tx_replay_find(tx, idem, &replay, error))
        return false;
    if (replay.found) {
        *ret = replay;
        return true;
    }
    sp_id_new("bld", replay.resource_id);
    g_autofree char *ref = g_strconcat(request->name, ":", request->tag, NULL);
    g_autofree char *recipe = sp_json_dump(request->recipe);
    struct sp_operation_new op = {.tenant = tenant,
                                  .build_id = replay.resource_id,
                                  .template_ref = ref,
                                  .kind = SP_OPERATION_TEMPLATE_BUILD};
    int64_t revision;
    if (!sp_tx_bump_revision(tx, &revision, error) ||
        !sp_tx_operation_insert(tx, &op, replay.operation_id, error) ||
        !sp_db_run(tx, NULL, error,
                   "INSERT INTO builds (id, node, ref, name, tag, recipe, operation_id, state,"
                   " revision, created_at, no_cache)"
                   " VALUES ($1, $2, $3, $4, $5, $6, $7, 'pending', $8, $9, $10)",
                   "tttttttiii", replay.resource_id, node, ref, request->name, request->tag, recipe,
                   replay.operation_id, revision, sp_time_now_ms(), (int64_t)request->no_cache) ||
        !sp_tx_replay_record(tx, idem, replay.resource_id, replay.operation_id, error) ||
        !sp_db_commit_auto(&tx, error))
        return false;
    g_autofree char *topic = sp_store_node_topic(node);
    sp_store_publish(store, topic);
    sp_store_publish(store, SP_TOPIC_CONTROLLER);
    *ret = replay;
    return true;
}

/* NULL without an error: no such row. where binds one text. Frees nothing of the caller's. */
static bool find(struct sp_db_tx *tx, const char *sql, const char *value, struct sp_build_row **ret,
                 GError **error)
{
    SP_DB_ROWS_AUTO *rows = sp_db_query(tx, error, sql, "t", value);
    int got = rows ? sp_db_next(rows, error) : -1;
    if (got < 0)
        return false;
    *ret = NULL;
    if (got == 0)
        return true;
    struct sp_build_row *b = g_new0(struct sp_build_row, 1);
    b->id = g_strdup(sp_db_text(rows, 0));
    b->node = g_strdup(sp_db_text(rows, 1));
    b->ref = g_strdup(sp_db_text(rows, 2));
    b->name = g_strdup(sp_db_text(rows, 3));
    b->tag = g_strdup(sp_db_text(rows, 4));
    b->operation_id = g_strdup(sp_db_text(rows, 5));
    b->digest = g_strdup(sp_db_text(rows, 6));
    b->log = g_strdup(sp_db_text(rows, 7));
    sp_operation_state_parse(sp_db_text(rows, 8), &b->state);
    b->created_at_ms = sp_db_int(rows, 9);
    b->finished_at_ms = sp_db_int(rows, 10);
    *ret = b;
    return true;
}
#define SELECT                                                                                     \
    "SELECT id, node, ref, name, tag, operation_id, digest, log, state, created_at, finished_at"   \
    " FROM builds "

struct sp_build_row *sp_store_build_find(struct sp_store *store, const struct sp_template_ref *ref,
                                         GError **error)
{
    g_autofree char *text =
        ref->digest[0] ? g_strdup(ref->digest) : g_strconcat(ref->name, ":", ref->tag, NULL);
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    struct sp_build_row *build = NULL;
    if (!tx || !find(tx, SELECT "WHERE ref = $1 OR digest = $1 ORDER BY id DESC LIMIT 1", text,
                     &build, error))
        return NULL;
    if (!build)
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no build of template %s", text);
    return build;
}

bool sp_tx_build_fail(struct sp_db_tx *tx, const char *build_id, const char *operation_id,
                      const char *error_code, const char *error_message, GError **error)
{
    return sp_db_run(tx, NULL, error,
                     "UPDATE builds SET state = 'failed', finished_at = $2"
                     " WHERE id = $1 AND state IN ('pending', 'running')",
                     "ti", build_id, sp_time_now_ms()) &&
           sp_tx_operation_end(tx, operation_id, error_code, error_message, NULL, error);
}

static bool succeed(struct sp_db_tx *tx, const struct sp_build_row *b,
                    const struct sp_build_report *r, GError **error)
{
    int64_t now = sp_time_now_ms();
    return sp_db_run(tx, NULL, error,
                     "INSERT INTO template_images (digest, size_bytes, config, created_at)"
                     " VALUES ($1, $2, $3, $4) ON CONFLICT (digest) DO NOTHING",
                     "titi", r->digest, r->size_bytes, r->config ? r->config : "{}", now) &&
           sp_db_run(tx, NULL, error,
                     "INSERT INTO template_tags (ref, name, tag, digest, created_at)"
                     " VALUES ($1, $2, $3, $4, $5) ON CONFLICT (ref) DO UPDATE SET"
                     " digest = excluded.digest, created_at = excluded.created_at",
                     "tttti", b->ref, b->name, b->tag, r->digest, now) &&
           sp_db_run(tx, NULL, error,
                     "UPDATE builds SET state = 'succeeded', digest = $2, finished_at = $3"
                     " WHERE id = $1",
                     "tti", b->id, r->digest, now) &&
           sp_tx_operation_end(tx, b->operation_id, NULL, NULL, NULL, error);
}

static bool apply(struct sp_db_tx *tx, const struct sp_build_row *b,
                  const struct sp_build_report *r, GError **error)
{
    if (r->log && !sp_db_run(tx, NULL, error,
                             "UPDATE builds SET log ="
                             " SUBSTR(log || $2, 1, CAST($3 AS INTEGER)) WHERE id = $1",
                             "tti", b->id, r->log, (int64_t)MAX_LOG_BYTES))
        return false;
    switch (r->state) {
    case SP_OPERATION_SUCCEEDED:
        return succeed(tx, b, r, error);
    case SP_OPERATION_FAILED:
        return sp_tx_build_fail(tx, b->id, b->operation_id,
                                r->error_code ? r->error_code : "internal",
                                r->error_message ? r->error_message : "the build failed", error);
    default:
        return sp_db_run(tx, NULL, error,
                         "UPDATE builds SET state = 'running' WHERE id = $1 AND state = 'pending'",
                         "t", b->id) &&
               sp_db_run(tx, NULL, error,
                         "UPDATE operations SET state = 'running', started_at = $2"
                         " WHERE id = $1 AND state = 'pending'",
                         "ti", b->operation_id, sp_time_now_ms());
    }
}

bool sp_store_build_report(struct sp_store *store, const char *id,
                           const struct sp_build_report *report, bool *ret_cancel, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    struct sp_build_row *b = NULL;
    if (!tx || !find(tx, SELECT "WHERE id = $1", id, &b, error))
        return false;
    if (!b) {
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no build %s", id);
        return false;
    }
    bool ended = sp_operation_ended(b->state);
    bool ok = ended || (apply(tx, b, report, error) && sp_db_commit_auto(&tx, error));
    if (ok) {
        sp_store_publish(store, b->operation_id);
        *ret_cancel = ended && b->state == SP_OPERATION_FAILED;
    }
    sp_build_row_free(b);
    return ok;
}
