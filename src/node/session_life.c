/* What happens to a session: begun, started, ended, lost; the mark in the run directory; the
 * report. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "node/outbox.h"
#include "node/sessions_private.h"

/* Content of the mark of an exec; that of others is empty. */
#define UNLISTED_MARK "x"
#define KEPT_MARK "k" /* an exec that a suspend has cut off from its caller */

static void set_text(struct sp_session *session, const char *code, const char *message)
{
    g_free(session->code);
    g_free(session->message);
    session->code = g_strdup(code);
    session->message = g_strdup(message);
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
        g_autofree char *text = NULL;
        bool kept = unlisted && g_file_get_contents(mark, &text, NULL, NULL) &&
                    strcmp(text, KEPT_MARK) == 0;
        g_mutex_lock(&sessions->lock);
        struct sp_session *session = sp_sessions_get_locked(sessions, name);
        g_strlcpy(session->sandbox_id, sandbox_id, sizeof(session->sandbox_id));
        session->unlisted = unlisted;
        session->orphan = unlisted && !kept;
        if (session->state == SP_SESSION_PENDING)
            session->state = SP_SESSION_RUNNING;
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
    if (session->state == SP_SESSION_PENDING) {
        session->state = SP_SESSION_RUNNING;
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
    if (!sp_session_ended(session->state)) {
        session->exit = *exit;
        session->has_exit = true;
        end_locked(sessions, session, SP_SESSION_EXITED);
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
    if (!sp_session_ended(session->state)) {
        set_text(session, code, message);
        end_locked(sessions, session, SP_SESSION_FAILED);
    }
    g_mutex_unlock(&sessions->lock);
}

static void lose_locked(struct sp_sessions *sessions, struct sp_session *session,
                        const char *reason)
{
    if (session->state != SP_SESSION_RUNNING)
        return;
    set_text(session, "lost", reason ? reason : "the sandbox has ended");
    end_locked(sessions, session, SP_SESSION_LOST);
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
        if (session->end_taken || session->state == SP_SESSION_PENDING)
            g_hash_table_iter_remove(&iter);
    }
    g_mutex_unlock(&sessions->lock);
}

void sp_sessions_keep(struct sp_sessions *sessions, const char *sandbox_id)
{
    GHashTableIter iter;
    void *value;
    g_autoptr(GPtrArray) marks = g_ptr_array_new_with_free_func(g_free);
    g_mutex_lock(&sessions->lock);
    g_hash_table_iter_init(&iter, sessions->by_id);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        struct sp_session *session = value;
        if (session->unlisted && !session->orphan && session->state == SP_SESSION_RUNNING &&
            strcmp(session->sandbox_id, sandbox_id) == 0)
            g_ptr_array_add(marks, mark_path(sessions, session));
    }
    g_mutex_unlock(&sessions->lock);
    for (guint i = 0; i < marks->len; i++) { /* one byte over the other: never half written */
        int fd = open(marks->pdata[i], O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
        ssize_t n = fd >= 0 ? pwrite(fd, KEPT_MARK, 1, 0) : 0;
        (void)n; /* it is killed then when a later worker finds it */
        if (fd >= 0)
            close(fd);
    }
}

void sp_sessions_orphan(struct sp_sessions *sessions, struct sp_session *session)
{
    g_mutex_lock(&sessions->lock);
    session->orphan = session->unlisted;
    g_mutex_unlock(&sessions->lock);
}

unsigned sp_sessions_attached(struct sp_sessions *sessions, const char *sandbox_id)
{
    GHashTableIter iter;
    void *value;
    unsigned attached = 0;
    g_mutex_lock(&sessions->lock);
    g_hash_table_iter_init(&iter, sessions->by_id);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        struct sp_session *session = value;
        if (strcmp(session->sandbox_id, sandbox_id) == 0)
            attached += session->attached;
    }
    g_mutex_unlock(&sessions->lock);
    return attached;
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
