#include "node/exec.h"

#include <signal.h>
#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "node/capture.h"
#include "node/session_run.h"

#define MAX_STREAM_BYTES (1u << 20)
#define LOOK_US (500 * 1000)
#define CANCEL_MS 5000

struct run {
    struct sp_node *node;
    struct sp_http_request *request;
    struct sp_session *session;
    struct sp_link *link; /* borrowed */
    struct sp_link_sub *sub;
    int64_t kill_deadline_us; /* 0: it was not killed */
    struct sp_capture out, err;
    struct sp_msg_exit exit;
    GError *failed; /* it never ran, or its end is not known */
};

static const struct {
    const char *code, *field;
} never_ran[] = {
    {"command_not_found", "/command/0"},
    {"not_executable", "/command/0"},
    {"cwd_not_found", "/cwd"},
    {"user_not_found", "/user"},
};

/* The error that an EVENT 6 becomes. */
static void set_never_ran(const struct sp_link_event *event, GError **error)
{
    g_autofree char *code = g_utf8_make_valid((const char *)event->data, event->code_len);
    g_autofree char *message = g_utf8_make_valid((const char *)event->data + event->code_len,
                                                 event->data_len - event->code_len);
    for (size_t i = 0; i < G_N_ELEMENTS(never_ran); i++) {
        if (strcmp(never_ran[i].code, code) == 0) {
            sp_error_set_field(error, never_ran[i].field, "%s: %s", code, message);
            return;
        }
    }
    bool limit = strcmp(code, "resource_limit") == 0;
    g_set_error(error, SP_ERROR, limit ? SP_ERROR_FAILED_PRECONDITION : SP_ERROR_INTERNAL, "%s: %s",
                code, message);
}

/* Takes one event in; true: it was the last. */
static bool take(struct run *run, const struct sp_link_event *event)
{
    switch (event->kind) {
    case SP_EVENT_STDOUT:
        sp_capture_add(&run->out, event->data, event->data_len);
        return false;
    case SP_EVENT_STDERR:
        sp_capture_add(&run->err, event->data, event->data_len);
        return false;
    case SP_EVENT_EXITED:
        run->exit = event->exit;
        sp_sessions_ended(run->node->sessions, run->session, event);
        return true;
    case SP_EVENT_ERROR:
        sp_sessions_ended(run->node->sessions, run->session, event);
        set_never_ran(event, &run->failed);
        return true;
    default:
        return false;
    }
}

/* Nobody waits for the answer any more: the command is killed, since nobody could get at its
 * output. Its end is still followed for the record. False: that took too long too. */
static bool kill_abandoned(struct run *run)
{
    int64_t now = sp_time_monotonic_us();
    if (run->kill_deadline_us)
        return now < run->kill_deadline_us;
    run->kill_deadline_us = now + CANCEL_MS * (int64_t)1000;
    struct sp_msg_signal signal = {
        .session_id = sp_span_of(run->session->id),
        .signal = SIGKILL,
        .scope = SP_SIGNAL_SESSION,
    };
    if (sp_link_signal(run->link, &signal, run->kill_deadline_us, NULL))
        return true;
    sp_sessions_orphan(run->node->sessions, run->session); /* paused: when it goes on */
    return false;
}

static void follow(struct run *run)
{
    int64_t look_us = sp_time_monotonic_us() + LOOK_US;
    for (;;) {
        struct sp_link_event *taken = NULL;
        enum sp_pull pull = sp_link_sub_pull(run->sub, look_us, &taken);
        g_autofree struct sp_link_event *event = taken;
        /* Also while output comes without a pause. */
        bool look = sp_time_monotonic_us() >= look_us;
        if (look)
            look_us = sp_time_monotonic_us() + LOOK_US;
        if (pull == SP_PULL_EVENT) {
            sp_link_sub_ack(run->sub, event->id, event->weight_end);
            if (take(run, event))
                return;
        } else if (pull == SP_PULL_LOST) {
            const char *reason = sp_link_sub_reason(run->sub);
            sp_sessions_lost(run->node->sessions, run->session, reason);
            g_set_error(&run->failed, SP_ERROR, SP_ERROR_UNAVAILABLE,
                        "lost: the end of the command is not known: %s", reason);
            return;
        } else if (pull == SP_PULL_SUSPENDED) {
            g_set_error(&run->failed, SP_ERROR, SP_ERROR_CONFLICT,
                        "the sandbox was suspended while the command ran; the command goes on when "
                        "the sandbox is woken");
            return;
        } else if (pull == SP_PULL_UNREACHABLE || pull == SP_PULL_STOPPED) {
            g_set_error(&run->failed, SP_ERROR, SP_ERROR_UNAVAILABLE,
                        pull == SP_PULL_STOPPED ? "the worker is stopping"
                                                : "the sandbox does not answer");
            return;
        } /* a gap cannot be here: nothing is acknowledged before it is captured */
        if (look && sp_node_stopping(run->node)) {
            g_set_error(&run->failed, SP_ERROR, SP_ERROR_UNAVAILABLE, "the worker is stopping");
            return;
        }
        if (look && sp_http_client_gone(run->request) && !kill_abandoned(run)) {
            g_set_error(&run->failed, SP_ERROR, SP_ERROR_UNAVAILABLE, "nobody waits any more");
            return;
        }
    }
}

static void respond(struct run *run)
{
    json_t *answer = sp_session_exit_json(&run->exit);
    json_t *truncated = json_object();
    sp_capture_to_json(&run->out, "stdout", answer, truncated);
    sp_capture_to_json(&run->err, "stderr", answer, truncated);
    json_object_set_new(answer, "truncated", truncated);
    sp_http_respond_json(run->request, 200, answer);
}

static void run_command(struct run *run, const struct sp_sandbox_use *use)
{
    GError *error = NULL;
    run->link = use->link;
    run->sub = sp_session_open(run->node, run->session, use, 0, &error);
    if (!run->sub) {
        sp_http_respond_error(run->request, error);
        g_error_free(error);
        return;
    }
    sp_capture_init(&run->out, MAX_STREAM_BYTES);
    sp_capture_init(&run->err, MAX_STREAM_BYTES);
    sp_sessions_attach(run->node->sessions, run->session, 1);
    follow(run);
    sp_sessions_attach(run->node->sessions, run->session, -1);
    if (run->failed)
        sp_http_respond_error(run->request, run->failed);
    else
        respond(run);
    sp_link_sub_free(run->sub);
    if (!run->failed) /* its output is in the answer: the agent need not keep it */
        sp_link_forget(use->link, run->session->id);
    sp_capture_clear(&run->out);
    sp_capture_clear(&run->err);
    g_clear_error(&run->failed);
}

void sp_exec(struct sp_http_request *request, void *user)
{
    struct sp_node *node = user;
    const char *sandbox_id = sp_http_param(request, 0);
    g_autoptr(GError) error = NULL;
    struct sp_sandbox_use use = {0};
    struct run run = {.node = node, .request = request};
    g_autoptr(json_t) body = sp_http_body_json(request, &error);
    if (body && sp_table_use(node->table, sandbox_id, &use, &error))
        run.session = sp_sessions_add(node->sessions, sandbox_id, body, &error);
    if (run.session)
        run_command(&run, &use);
    else
        sp_http_respond_error(request, error);
    sp_session_unref(run.session);
    sp_sandbox_use_clear(&use);
}
