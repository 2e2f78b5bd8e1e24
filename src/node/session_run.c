#include "node/session_run.h"

#include <signal.h>

#include "base/error.h"
#include "base/time.h"
#include "model/session.h"

#define LOOK_MS 3000

static int64_t deadline_in(int64_t ms)
{
    return sp_time_monotonic_us() + ms * 1000;
}

/* The START of a session; borrows from session and use. */
static void make_start(const struct sp_session *session, const struct sp_sandbox_use *use,
                       struct sp_msg_start *ret)
{
    const struct sp_session_spec *spec = &session->spec;
    *ret = (struct sp_msg_start){
        .session_id = sp_span_of(session->id),
        .argv = {g_strv_length(spec->command), (const char *const *)spec->command, {NULL, 0}},
        .env = {spec->env ? g_strv_length(spec->env) : 0,
                (const char *const *)spec->env,
                {NULL, 0}},
        .cwd = sp_span_of(spec->cwd && *spec->cwd ? spec->cwd : use->workdir),
        .user = sp_span_of(spec->user && *spec->user ? spec->user : use->user),
        .stdin_open = g_strcmp0(sp_stdin_names[spec->stdin_mode], "open") == 0,
        .timeout_ms = (uint64_t)spec->timeout_ms,
        .grace_ms = (uint64_t)spec->grace_ms,
        .overflow = g_strcmp0(sp_overflow_names[spec->overflow], "drop") == 0 ? SP_OVERFLOW_DROP
                                                                              : SP_OVERFLOW_BLOCK,
        .rows = (uint16_t)spec->rows,
        .cols = (uint16_t)spec->cols,
    };
}

static bool is_pending(struct sp_node *node, struct sp_session *session)
{
    struct sp_session_view view;
    sp_sessions_view(node->sessions, session, &view);
    return view.state == SP_SESSION_PENDING;
}

/* A START that the agent has answered with an error has left nothing; one without an answer may
 * have. */
static void note_refusal(struct sp_node *node, struct sp_session *session, const GError *error)
{
    if (!g_error_matches(error, SP_ERROR, SP_ERROR_UNAVAILABLE))
        sp_sessions_refused(node->sessions, session);
}

/* The agent does not have a session that was started. */
static void forgotten(struct sp_node *node, struct sp_session *session, GError **error)
{
    sp_sessions_lost(node->sessions, session, "the sandbox does not know the session any more");
    g_clear_error(error);
    g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                "the session has ended and its output is not kept any more");
}

struct sp_link_sub *sp_session_open(struct sp_node *node, struct sp_session *session,
                                    const struct sp_sandbox_use *use, uint64_t after_event,
                                    GError **error)
{
    int64_t deadline = deadline_in(SP_SESSION_OPEN_MS);
    GError *cause = NULL;
    struct sp_link_sub *sub;
    if (is_pending(node, session)) {
        struct sp_msg_start start;
        struct sp_msg_session started = {0};
        if (!sp_sessions_begin(node->sessions, session, error))
            return NULL;
        make_start(session, use, &start);
        sub = sp_link_subscribe(use->link, session->id, &start, after_event, deadline, &started,
                                &cause);
        if (started.state)
            sp_sessions_started(node->sessions, session, &started);
        else
            note_refusal(node, session, cause);
    } else {
        sub = sp_link_subscribe(use->link, session->id, NULL, after_event, deadline, NULL, &cause);
        if (!sub && g_error_matches(cause, SP_ERROR, SP_ERROR_NOT_FOUND))
            forgotten(node, session, &cause);
    }
    if (!sub)
        g_propagate_error(error, cause);
    return sub;
}

bool sp_session_start(struct sp_node *node, struct sp_session *session,
                      const struct sp_sandbox_use *use, GError **error)
{
    if (!is_pending(node, session))
        return true;
    struct sp_msg_start start;
    struct sp_msg_session started;
    GError *cause = NULL;
    if (!sp_sessions_begin(node->sessions, session, error))
        return false;
    make_start(session, use, &start);
    if (!sp_link_session_start(use->link, &start, deadline_in(SP_SESSION_OPEN_MS), &started,
                               &cause)) {
        note_refusal(node, session, cause);
        g_propagate_error(error, cause);
        return false;
    }
    sp_sessions_started(node->sessions, session, &started);
    return true;
}

/* The one event of a session that never ran says why. */
static void take_failure(struct sp_node *node, struct sp_session *session, struct sp_link *link)
{
    int64_t deadline = deadline_in(LOOK_MS);
    struct sp_link_sub *sub = sp_link_subscribe(link, session->id, NULL, 0, deadline, NULL, NULL);
    struct sp_link_event *event = NULL;
    if (sub && sp_link_sub_pull(sub, deadline, &event) == SP_PULL_EVENT &&
        event->kind == SP_EVENT_ERROR)
        sp_sessions_ended(node->sessions, session, event);
    g_free(event);
    sp_link_sub_free(sub);
}

/* The exec of an earlier worker: nobody can get at its output any more. */
static void kill_orphan(struct sp_session *session, struct sp_link *link)
{
    struct sp_msg_signal signal = {
        .session_id = sp_span_of(session->id),
        .signal = SIGKILL,
        .scope = SP_SIGNAL_SESSION,
    };
    sp_link_signal(link, &signal, deadline_in(LOOK_MS), NULL);
}

void sp_session_look(struct sp_node *node, struct sp_session *session)
{
    struct sp_sandbox_use use;
    if (!sp_table_use(node->table, session->sandbox_id, &use, NULL))
        return; /* sp_take_down() ends its sessions */
    struct sp_msg_session now;
    g_autoptr(GError) error = NULL;
    if (sp_link_session_stat(use.link, session->id, deadline_in(LOOK_MS), &now, &error)) {
        if (now.state == SP_MSG_SESSION_ENDED && now.failed)
            take_failure(node, session, use.link);
        else if (now.state == SP_MSG_SESSION_ENDED)
            sp_sessions_exited(node->sessions, session, &now.exit);
        else if (session->orphan)
            kill_orphan(session, use.link);
        else
            sp_sessions_started(node->sessions, session, &now);
    } else if (g_error_matches(error, SP_ERROR, SP_ERROR_NOT_FOUND)) {
        sp_sessions_lost(node->sessions, session, "the sandbox does not know the session any more");
    }
    sp_sandbox_use_clear(&use);
}
