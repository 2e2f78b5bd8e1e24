#include "node/sessions.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "node/outbox.h"
#include "node/upstream.h"

#define MAX_CACHED 8192u
#define KEEP_ENDED_MS (10 * 60 * 1000)
#define LOOK_ALONE_MS 1000     /* nobody reads it */
#define LOOK_ATTACHED_MS 30000 /* a reader will see the end */
#define ASKS_A_SECOND 20u
#define UNLISTED_MARK "x" /* content of the mark of an exec; that of others is empty */

struct sp_sessions {
    struct sp_node *node;
    GMutex lock;
    GCond taken;       /* a session's end_taken */
    GHashTable *by_id; /* id → struct sp_session *, a reference each */
};

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

static bool is_over(const struct sp_session *session)
{
    return session->state > SP_SESSION_STATE_RUNNING;
}

/* --- the cache; with the lock held */
static struct sp_session *get_locked(struct sp_sessions *sessions, const char *id)
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

static void set_text(struct sp_session *session, const char *code, const char *message)
{
    g_free(session->code);
    g_free(session->message);
    session->code = g_strdup(code);
    session->message = g_strdup(message);
}

/* What the server has heard of a session before: one that has begun is never begun again. */
static void take_hint(struct sp_session *session, json_t *answer)
{
    const char *state = json_string_value(json_object_get(answer, "state"));
    if (!state || session->state != SP_SESSION_STATE_PENDING)
        return;
    for (int i = SP_SESSION_STATE_RUNNING; i < SP_N_SESSION_STATES; i++) {
        if (strcmp(state, sp_node_session_states[i]) == 0)
            session->state = (enum sp_session_state)i;
    }
    session->end_taken = is_over(session);
}

/* Asks the server and takes in what it says. A reference. */
static struct sp_session *fetch(struct sp_sessions *sessions, const char *id, GError **error)
{
    json_t *answer = sp_upstream_session(sessions->node, id, error);
    if (!answer)
        return NULL;
    g_mutex_lock(&sessions->lock);
    struct sp_session *session = get_locked(sessions, id);
    bool fine = sp_session_fill(session, answer, error);
    if (fine) {
        sp_session_fill_tokens(session, answer);
        take_hint(session, answer);
        sp_session_ref(session);
    } else if (session->refs == 1 && !session->spec.command &&
               session->state == SP_SESSION_STATE_PENDING) {
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
        struct sp_session *session = get_locked(sessions, id);
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

/* --- the marks in the run directory */
static char *mark_path(struct sp_sessions *sessions, const struct sp_session *session)
{
    return g_build_filename(sessions->node->sandbox_root, session->sandbox_id, "sessions",
                            session->id, NULL);
}

bool sp_sessions_begin(struct sp_sessions *sessions, struct sp_session *session, GError **error)
{
    g_autofree char *path = mark_path(sessions, session);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno,
                           "recording the start of the session");
        return false;
    }
    bool fine = !session->unlisted || write(fd, UNLISTED_MARK, 1) == 1;
    close(fd);
    if (fine)
        return true;
    sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "recording the start of the session");
    unlink(path);
    return false;
}

void sp_sessions_adopt(struct sp_sessions *sessions, const char *sandbox_id, const char *run_dir)
{
    g_autofree char *path = g_build_filename(run_dir, "sessions", NULL);
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    const char *name;
    while (dir && (name = g_dir_read_name(dir))) {
        if (!sp_id_valid(name, "ses"))
            continue;
        g_autofree char *mark = g_build_filename(path, name, NULL);
        struct stat st;
        bool unlisted = stat(mark, &st) == 0 && st.st_size > 0;
        g_mutex_lock(&sessions->lock);
        struct sp_session *session = get_locked(sessions, name);
        g_strlcpy(session->sandbox_id, sandbox_id, sizeof(session->sandbox_id));
        session->unlisted = session->orphan = unlisted;
        if (session->state == SP_SESSION_STATE_PENDING)
            session->state = SP_SESSION_STATE_RUNNING;
        session->looked_at_ms = 0;
        g_mutex_unlock(&sessions->lock);
    }
}

/* --- the life of a session */
static void report_locked(struct sp_sessions *sessions, struct sp_session *session)
{
    if (!session->unlisted)
        sp_outbox_put(sessions->node->session_reports, session->id, sp_session_report(session));
}

void sp_sessions_started(struct sp_sessions *sessions, struct sp_session *session,
                         const struct sp_msg_session *started)
{
    g_mutex_lock(&sessions->lock);
    session->looked_at_ms = sp_time_monotonic_ms();
    if (session->state == SP_SESSION_STATE_PENDING) {
        session->state = SP_SESSION_STATE_RUNNING;
        session->started_at_ms = sp_time_now_ms();
        report_locked(sessions, session);
    }
    if (started->pid > 0)
        session->pid = started->pid;
    g_mutex_unlock(&sessions->lock);
}

void sp_sessions_refused(struct sp_sessions *sessions, struct sp_session *session)
{
    g_autofree char *path = mark_path(sessions, session);
    unlink(path);
}

static void end_locked(struct sp_sessions *sessions, struct sp_session *session,
                       enum sp_session_state state)
{
    session->state = state;
    session->ended_at_ms = sp_time_now_ms();
    report_locked(sessions, session);
    if (session->unlisted) {
        session->end_taken = true;
        g_autofree char *path = mark_path(sessions, session);
        unlink(path);
    }
}

void sp_sessions_exited(struct sp_sessions *sessions, struct sp_session *session,
                        const struct sp_msg_exit *exit)
{
    g_mutex_lock(&sessions->lock);
    if (!is_over(session)) {
        session->exit = *exit;
        session->has_exit = true;
        end_locked(sessions, session, SP_SESSION_STATE_EXITED);
    }
    g_mutex_unlock(&sessions->lock);
}

void sp_sessions_ended(struct sp_sessions *sessions, struct sp_session *session,
                       const struct sp_link_event *last)
{
    if (last->kind == SP_EVENT_EXITED) {
        sp_sessions_exited(sessions, session, &last->exit);
        return;
    }
    g_autofree char *code = g_utf8_make_valid((const char *)last->data, last->code_len);
    g_autofree char *message = g_utf8_make_valid((const char *)last->data + last->code_len,
                                                 last->data_len - last->code_len);
    g_mutex_lock(&sessions->lock);
    if (!is_over(session)) {
        set_text(session, code, message);
        end_locked(sessions, session, SP_SESSION_STATE_FAILED);
    }
    g_mutex_unlock(&sessions->lock);
}

static void lose_locked(struct sp_sessions *sessions, struct sp_session *session,
                        const char *reason)
{
    if (session->state != SP_SESSION_STATE_RUNNING)
        return;
    set_text(session, "lost", reason ? reason : "the sandbox has ended");
    end_locked(sessions, session, SP_SESSION_STATE_LOST);
}

void sp_sessions_lost(struct sp_sessions *sessions, struct sp_session *session, const char *reason)
{
    g_mutex_lock(&sessions->lock);
    lose_locked(sessions, session, reason);
    g_mutex_unlock(&sessions->lock);
}

void sp_sessions_lose(struct sp_sessions *sessions, const char *sandbox_id, const char *reason)
{
    GHashTableIter iter;
    void *value;
    g_mutex_lock(&sessions->lock);
    g_hash_table_iter_init(&iter, sessions->by_id);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        struct sp_session *session = value;
        if (strcmp(session->sandbox_id, sandbox_id) != 0)
            continue;
        lose_locked(sessions, session, reason);
        session->wanted_gone = true;
        if (session->end_taken || session->state == SP_SESSION_STATE_PENDING)
            g_hash_table_iter_remove(&iter);
    }
    g_mutex_unlock(&sessions->lock);
}

void sp_sessions_taken(void *data, const char *id, const json_t *report, bool taken)
{
    struct sp_node *node = data;
    struct sp_sessions *sessions = node->sessions;
    const char *state = json_string_value(json_object_get(report, "state"));
    if (!state || strcmp(state, "running") == 0)
        return;
    g_autofree char *path = NULL;
    g_mutex_lock(&sessions->lock);
    struct sp_session *session = g_hash_table_lookup(sessions->by_id, id);
    if (session) {
        path = mark_path(sessions, session);
        session->end_taken = true;
        g_cond_broadcast(&sessions->taken);
        if (session->wanted_gone)
            g_hash_table_remove(sessions->by_id, id);
    }
    g_mutex_unlock(&sessions->lock);
    if (path)
        unlink(path);
}

void sp_sessions_await_taken(struct sp_sessions *sessions, struct sp_session *session,
                             int64_t timeout_ms)
{
    int64_t until = sp_time_monotonic_us() + timeout_ms * 1000;
    g_mutex_lock(&sessions->lock);
    while (!session->end_taken && g_cond_wait_until(&sessions->taken, &sessions->lock, until)) {
    }
    g_mutex_unlock(&sessions->lock);
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
        session->state == SP_SESSION_STATE_RUNNING || (is_over(session) && !session->end_taken))
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
        if (session->state == SP_SESSION_STATE_RUNNING && now - session->looked_at_ms >= pause) {
            session->looked_at_ms = now;
            g_ptr_array_add(due, sp_session_ref(session));
        }
    }
    g_mutex_unlock(&sessions->lock);
    return due;
}
