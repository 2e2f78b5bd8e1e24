#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "store/internal.h"

#define SELECT                                                                                     \
    "SELECT x.id, x.tenant, x.sandbox_id, x.process_id, x.spec, x.exit_status, x.error, x.state,"  \
    " x.created_at, x.started_at, x.ended_at FROM sessions x "

void sp_session_row_free(struct sp_session_row *session)
{
    if (!session)
        return;
    g_free(session->id);
    g_free(session->tenant);
    g_free(session->sandbox_id);
    g_free(session->process_id);
    g_free(session->spec);
    g_free(session->exit);
    g_free(session->error);
    g_free(session);
}

/* The session of a query that begins with SELECT; SP_ERROR_NOT_FOUND when there is no row or it is
 * another tenant's. Frees rows, which may be NULL (an error). */
static struct sp_session_row *take_one(struct sp_db_rows *taken, const char *tenant, const char *id,
                                       GError **error)
{
    SP_DB_ROWS_AUTO *rows = taken;
    int got = rows ? sp_db_next(rows, error) : -1;
    if (got < 0)
        return NULL;
    if (got == 0 || (tenant && strcmp(tenant, sp_db_text(rows, 1)) != 0)) {
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no session %s", id);
        return NULL;
    }
    struct sp_session_row *s = g_new0(struct sp_session_row, 1);
    s->id = g_strdup(sp_db_text(rows, 0));
    s->tenant = g_strdup(sp_db_text(rows, 1));
    s->sandbox_id = g_strdup(sp_db_text(rows, 2));
    s->process_id = g_strdup(sp_db_text(rows, 3));
    s->spec = g_strdup(sp_db_text(rows, 4));
    s->exit = g_strdup(sp_db_text(rows, 5));
    s->error = g_strdup(sp_db_text(rows, 6));
    sp_session_state_parse(sp_db_text(rows, 7), &s->state);
    s->created_at_ms = sp_db_int(rows, 8);
    s->started_at_ms = sp_db_int(rows, 9);
    s->ended_at_ms = sp_db_int(rows, 10);
    return s;
}

static bool put_token(struct sp_db_tx *tx, const char *session_id,
                      const struct sp_session_token *token, GError **error)
{
    return sp_db_run(tx, NULL, error,
                     "INSERT INTO session_tokens (hash, session_id, expires_at)"
                     " VALUES ($1, $2, $3)",
                     "tti", token->hash, session_id, token->expires_at_ms);
}

static bool sandbox_runs(struct sp_db_tx *tx, const char *tenant, const char *id, GError **error)
{
    struct sp_sandbox_row *s = NULL;
    if (!sp_tx_sandbox(tx, id, &s, error))
        return false;
    bool found = s && s->state != SP_STATE_DELETED && (!tenant || strcmp(tenant, s->tenant) == 0);
    bool runs = found && s->state == SP_STATE_RUNNING;
    if (!found)
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no sandbox %s", id);
    else if (!runs)
        sp_sandbox_set_not_running(error, s->state);
    sp_sandbox_row_free(s);
    return runs;
}

static bool insert(struct sp_db_tx *tx, const struct sp_session_new *new, char ret_id[SP_ID_MAX],
                   GError **error)
{
    char process_id[SP_ID_MAX];
    sp_id_new("ses", ret_id);
    sp_id_new("prc", process_id);
    int64_t now = sp_time_now_ms();
    return sp_db_run(tx, NULL, error,
                     "INSERT INTO sessions (id, tenant, sandbox_id, process_id, spec, state,"
                     " created_at) VALUES ($1, $2, $3, $4, $5, 'pending', $6)",
                     "ttttti", ret_id, new->tenant, new->sandbox_id, process_id, new->spec, now) &&
           sp_db_run(tx, NULL, error, "UPDATE sandboxes SET last_active_at = $2 WHERE id = $1",
                     "ti", new->sandbox_id, now);
}

bool sp_store_session_create(struct sp_store *store, const struct sp_session_new *session,
                             const struct sp_idempotency *idem, struct sp_replay *ret,
                             GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    struct sp_replay replay;
    if (!tx || !sp_tx_replay_find(tx, idem, &replay, error))
        return false;
    if (!replay.found && (!sandbox_runs(tx, session->tenant, session->sandbox_id, error) ||
                          !insert(tx, session, replay.resource_id, error) ||
                          !sp_tx_replay_record(tx, idem, replay.resource_id, "", error)))
        return false;
    /* A repeated request gets a token of its own: the first one is not kept in the clear. */
    if (!put_token(tx, replay.resource_id, &session->token, error) ||
        !sp_db_commit_auto(&tx, error))
        return false;
    *ret = replay;
    return true;
}

struct sp_session_row *sp_store_session_get(struct sp_store *store, const char *tenant,
                                            const char *id, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    if (!tx)
        return NULL;
    return take_one(sp_db_query(tx, error, SELECT "WHERE x.id = $1", "t", id), tenant, id, error);
}

bool sp_store_session_add_token(struct sp_store *store, const char *tenant, const char *id,
                                const struct sp_session_token *token, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    if (!tx)
        return false;
    struct sp_session_row *s =
        take_one(sp_db_query(tx, error, SELECT "WHERE x.id = $1", "t", id), tenant, id, error);
    if (!s)
        return false;
    sp_session_row_free(s);
    return put_token(tx, id, token, error) && sp_db_commit_auto(&tx, error);
}

static GArray *read_tokens(struct sp_db_tx *tx, const char *id, GError **error)
{
    SP_DB_ROWS_AUTO *rows = sp_db_query(
        tx, error,
        "SELECT hash, expires_at FROM session_tokens WHERE session_id = $1 AND expires_at > $2",
        "ti", id, sp_time_now_ms());
    if (!rows)
        return NULL;
    g_autoptr(GArray) tokens = g_array_new(FALSE, TRUE, sizeof(struct sp_session_token));
    int got;
    while ((got = sp_db_next(rows, error)) > 0) {
        struct sp_session_token token = {.expires_at_ms = sp_db_int(rows, 1)};
        g_strlcpy(token.hash, sp_db_text(rows, 0), SP_HASH_HEX);
        g_array_append_val(tokens, token);
    }
    return got < 0 ? NULL : g_steal_pointer(&tokens);
}

struct sp_session_row *sp_store_session_for_worker(struct sp_store *store, const char *id,
                                                   GArray **ret_tokens, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    if (!tx)
        return NULL;
    struct sp_session_row *s =
        take_one(sp_db_query(tx, error,
                             SELECT "JOIN sandboxes s ON s.id = x.sandbox_id WHERE x.id = $1"
                                    " AND s.desired_state <> 'deleted'",
                             "t", id),
                 NULL, id, error);
    GArray *tokens = s ? read_tokens(tx, id, error) : NULL;
    if (!tokens) {
        sp_session_row_free(s);
        return NULL;
    }
    *ret_tokens = tokens;
    return s;
}

static bool apply(struct sp_db_tx *tx, const char *node, const struct sp_session_report *r,
                  GError **error)
{
    int64_t now = sp_time_now_ms();
    bool ended = sp_session_ended(r->state);
    int64_t changed = 0;
    /* Only forward: an ended session keeps its end, and nothing goes back to pending. */
    if (!sp_db_run(tx, &changed, error,
                   "UPDATE sessions SET state = $2,"
                   " started_at = CASE WHEN started_at = 0 THEN $3 ELSE started_at END,"
                   " ended_at = $4, exit_status = $5, error = $6"
                   " WHERE id = $1 AND state IN ('pending', 'running') AND $2 <> 'pending' AND"
                   " ($7 = '' OR sandbox_id IN (SELECT id FROM sandboxes WHERE node = $7))",
                   "ttiittt", r->id, sp_session_state_names[r->state],
                   r->started_at_ms                 ? r->started_at_ms
                   : r->state == SP_SESSION_RUNNING ? now
                                                    : 0,
                   ended ? (r->ended_at_ms ? r->ended_at_ms : now) : (int64_t)0, r->exit, r->error,
                   node ? node : ""))
        return false;
    /* The end of a command counts as activity: idle time begins now. */
    return changed == 0 || !ended ||
           sp_db_run(tx, NULL, error,
                     "UPDATE sandboxes SET last_active_at = $2 WHERE last_active_at < $2 AND"
                     " id = (SELECT sandbox_id FROM sessions WHERE id = $1)",
                     "ti", r->id, now);
}

bool sp_store_session_report(struct sp_store *store, const char *node,
                             const struct sp_session_report *reports, unsigned n_reports,
                             GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    if (!tx)
        return false;
    for (unsigned i = 0; i < n_reports; i++) {
        if (!apply(tx, node, &reports[i], error))
            return false;
    }
    if (!sp_db_commit_auto(&tx, error))
        return false;
    sp_store_publish(store, SP_TOPIC_CONTROLLER); /* an end moves the idle deadline */
    return true;
}

bool sp_tx_sessions_lost(struct sp_db_tx *tx, const char *sandbox_id, GError **error)
{
    return sp_db_run(tx, NULL, error,
                     "UPDATE sessions SET state = 'lost', ended_at = $2"
                     " WHERE sandbox_id = $1 AND state IN ('pending', 'running')",
                     "ti", sandbox_id, sp_time_now_ms()) &&
           sp_db_run(tx, NULL, error,
                     "DELETE FROM session_tokens WHERE session_id IN"
                     " (SELECT id FROM sessions WHERE sandbox_id = $1)",
                     "t", sandbox_id);
}
