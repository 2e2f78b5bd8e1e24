#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "node/sessions_private.h"
#include "node/upstream.h"

#define MAX_CACHED 8192u
#define KEEP_ENDED_MS (10 * 60 * 1000)
#define LOOK_ALONE_MS 1000     /* nobody reads it */
#define LOOK_ATTACHED_MS 30000 /* a reader will see the end */
#define ASKS_A_SECOND 20u

struct sp_sessions *sp_sessions_new(struct sp_node *node)
{
    struct sp_sessions *sessions = g_new0(struct sp_sessions, 1);
    sessions->node = node;
    g_mutex_init(&sessions->lock);
    g_cond_init(&sessions->taken);
    sessions->by_id =
        g_hash_table_new_full(g_str_hash, g_str_equal, NULL, (GDestroyNotify)sp_session_unref);
    return sessions;
}

void sp_sessions_free(struct sp_sessions *sessions)
{
    g_hash_table_destroy(sessions->by_id);
    g_mutex_clear(&sessions->lock);
    g_cond_clear(&sessions->taken);
    g_free(sessions);
}

struct sp_session *sp_sessions_get_locked(struct sp_sessions *sessions, const char *id)
{
    struct sp_session *session = g_hash_table_lookup(sessions->by_id, id);
    if (session)
        return session;
    session = g_new0(struct sp_session, 1);
    session->refs = 1;
    g_strlcpy(session->id, id, sizeof(session->id));
    session->tokens = g_array_new(FALSE, FALSE, sizeof(struct sp_session_token));
    session->looked_at_ms = sp_time_monotonic_ms();
    g_hash_table_insert(sessions->by_id, session->id, session);
    return session;
}

/* What the server has heard of a session before: one that has begun is never begun again. */
static void take_hint(struct sp_session *session, json_t *answer)
{
    const char *state = json_string_value(json_object_get(answer, "state"));
    if (!state || session->state != SP_SESSION_PENDING ||
        !sp_session_state_parse(state, &session->state))
        return;
    session->end_taken = sp_session_ended(session->state);
}

/* Asks the server and takes in what it says. A reference. */
static struct sp_session *fetch(struct sp_sessions *sessions, const char *id, GError **error)
{
    json_t *answer = sp_upstream_session(sessions->node, id, error);
    if (!answer)
        return NULL;
    g_mutex_lock(&sessions->lock);
    struct sp_session *session = sp_sessions_get_locked(sessions, id);
    bool fine = sp_session_fill(session, answer, error);
    if (fine) {
        sp_session_fill_tokens(session, answer);
        take_hint(session, answer);
        sp_session_ref(session);
    } else if (session->refs == 1 && !session->spec.command &&
               session->state == SP_SESSION_PENDING) {
        g_hash_table_remove(sessions->by_id, id);
    }
    g_mutex_unlock(&sessions->lock);
    json_decref(answer);
    return fine ? session : NULL;
}

static bool check_id(const char *id, GError **error)
{
    if (sp_id_valid(id, "ses"))
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "no such session");
    return false;
}

struct sp_session *sp_sessions_get(struct sp_sessions *sessions, const char *id, GError **error)
{
    if (!check_id(id, error))
        return NULL;
    g_mutex_lock(&sessions->lock);
    struct sp_session *session = g_hash_table_lookup(sessions->by_id, id);
    session = session && session->spec.command ? sp_session_ref(session) : NULL;
    g_mutex_unlock(&sessions->lock);
    return session ? session : fetch(sessions, id, error);
}

/* Whether the server may be asked about one more token that is not known. The lock is held. */
static bool may_ask(struct sp_session *session)
{
    int64_t now = sp_time_monotonic_ms();
    if (now - session->asked_window_ms >= 1000) {
        session->asked_window_ms = now;
        session->asked = 0;
    }
    return session->asked++ < ASKS_A_SECOND;
}

struct sp_session *sp_sessions_authorize(struct sp_sessions *sessions, const char *id,
                                         const char *token, GError **error)
{
    char hash[SP_HASH_HEX];
    if (!token || !g_str_has_prefix(token, "at_") || strlen(token) >= SP_SECRET_MAX) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNAUTHENTICATED,
                    "an attachment token is needed here (Authorization: Bearer at_…)");
        return NULL;
    }
    if (!check_id(id, error))
        return NULL;
    sp_secret_hash(token, hash);
    g_mutex_lock(&sessions->lock);
    struct sp_session *session = g_hash_table_lookup(sessions->by_id, id);
    bool valid = session && sp_session_token_valid(session, hash, sp_time_now_ms());
    if (valid)
        sp_session_ref(session);
    bool ask = !valid && (!session || may_ask(session));
    g_mutex_unlock(&sessions->lock);
    if (valid)
        return session;
    session = ask ? fetch(sessions, id, error) : NULL;
    if (ask && !session)
        return NULL;
    if (session) {
        g_mutex_lock(&sessions->lock);
        valid = sp_session_token_valid(session, hash, sp_time_now_ms());
        g_mutex_unlock(&sessions->lock);
        if (valid)
            return session;
        sp_session_unref(session);
    }
    g_set_error(error, SP_ERROR, SP_ERROR_UNAUTHENTICATED,
                "the attachment token is not valid for this session, or has expired");
    return NULL;
}

struct sp_session *sp_sessions_add(struct sp_sessions *sessions, const char *sandbox_id,
                                   json_t *body, GError **error)
{
    const char *id = json_string_value(json_object_get(body, "session_id"));
    if (!id || !sp_id_valid(id, "ses")) {
        sp_error_set_field(error, "/session_id", "a session id is needed");
        return NULL;
    }
    g_mutex_lock(&sessions->lock);
    bool fine = false;
    if (g_hash_table_contains(sessions->by_id, id)) {
        g_set_error(error, SP_ERROR, SP_ERROR_CONFLICT, "session %s is there already", id);
    } else {
        struct sp_session *session = sp_sessions_get_locked(sessions, id);
        g_strlcpy(session->sandbox_id, sandbox_id, sizeof(session->sandbox_id));
        session->unlisted = true;
        fine = sp_session_fill(session, body, error);
        if (!fine)
            g_hash_table_remove(sessions->by_id, id);
    }
    struct sp_session *session =
        fine ? sp_session_ref(g_hash_table_lookup(sessions->by_id, id)) : NULL;
    g_mutex_unlock(&sessions->lock);
    return session;
}

struct sp_session *sp_sessions_by_process(struct sp_sessions *sessions, const char *sandbox_id,
                                          const char *process_id)
{
    struct sp_session *found = NULL;
    GHashTableIter iter;
    void *value;
    g_mutex_lock(&sessions->lock);
    g_hash_table_iter_init(&iter, sessions->by_id);
    while (!found && g_hash_table_iter_next(&iter, NULL, &value)) {
        struct sp_session *session = value;
        if (strcmp(session->process_id, process_id) == 0 &&
            strcmp(session->sandbox_id, sandbox_id) == 0)
            found = sp_session_ref(session);
    }
    g_mutex_unlock(&sessions->lock);
    return found;
}

void sp_sessions_view(struct sp_sessions *sessions, struct sp_session *session,
                      struct sp_session_view *ret)
{
    g_mutex_lock(&sessions->lock);
    *ret = (struct sp_session_view){session->state, session->pid};
    g_mutex_unlock(&sessions->lock);
}

json_t *sp_sessions_to_json(struct sp_sessions *sessions, struct sp_session *session)
{
    g_mutex_lock(&sessions->lock);
    json_t *value = sp_session_report(session);
    json_object_set_new(value, "pid", json_integer(session->pid));
    g_mutex_unlock(&sessions->lock);
    return value;
}

void sp_sessions_attach(struct sp_sessions *sessions, struct sp_session *session, int change)
{
    g_mutex_lock(&sessions->lock);
    session->attached += (unsigned)change;
    session->looked_at_ms = sp_time_monotonic_ms();
    g_mutex_unlock(&sessions->lock);
}

/* Whether a cached session is of no use any more. */
static bool is_stale(const struct sp_session *session, int64_t now_ms, bool crowded)
{
    if (session->attached > 0 || g_atomic_int_get(&session->refs) > 1 ||
        session->state == SP_SESSION_RUNNING ||
        (sp_session_ended(session->state) && !session->end_taken))
        return false;
    return crowded || session->unlisted || now_ms - session->looked_at_ms > KEEP_ENDED_MS;
}

GPtrArray *sp_sessions_sweep(struct sp_sessions *sessions)
{
    GPtrArray *due = g_ptr_array_new_with_free_func((GDestroyNotify)sp_session_unref);
    int64_t now = sp_time_monotonic_ms();
    GHashTableIter iter;
    void *value;
    g_mutex_lock(&sessions->lock);
    bool crowded = g_hash_table_size(sessions->by_id) > MAX_CACHED;
    g_hash_table_iter_init(&iter, sessions->by_id);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        struct sp_session *session = value;
        if (is_stale(session, now, crowded)) {
            g_hash_table_iter_remove(&iter);
            continue;
        }
        int64_t pause = session->attached > 0 ? LOOK_ATTACHED_MS : LOOK_ALONE_MS;
        if (session->state == SP_SESSION_RUNNING && now - session->looked_at_ms >= pause) {
            session->looked_at_ms = now;
            g_ptr_array_add(due, sp_session_ref(session));
        }
    }
    g_mutex_unlock(&sessions->lock);
    return due;
}
