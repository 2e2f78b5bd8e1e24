#include "cli/remote.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "cli/attachment.h"
#include "cli/command.h"
#include "cli/events.h"
#include "cli/output.h"
#include "cli/stdin_pump.h"

/* The data plane sends a comment every 15 s; a stream that is silent for longer is dead. */
#define SILENCE_MS 45000
/* Tries in a row that brought no event, with growing pauses: about 20 s, enough for a worker to be
 * restarted. Fewer when the session is over and a replay is all that can still come. */
#define MAX_FRUITLESS 14
#define MAX_FRUITLESS_ENDED 3
#define MAX_PAUSE_MS 2000

struct stream {
    struct sp_client *api;
    struct sp_attachment *attachment;
    struct sp_interrupt *interrupt;
    struct sp_event_sink sink;
    struct sp_sse_parser *parser; /* of the current connection */
    struct sp_stdin_pump *pump;
    bool interactive;
    bool bad_event; /* longer than SP_EVENT_MAX_BYTES */
    int64_t last_bytes_ms;
};

json_t *sp_remote_env(char *const *env, GError **error)
{
    g_autoptr(json_t) map = json_object();
    for (; env && *env; env++) {
        const char *equals = strchr(*env, '=');
        g_autofree char *name = equals ? g_strndup(*env, (gsize)(equals - *env)) : g_strdup(*env);
        const char *value = equals ? equals + 1 : g_getenv(name);
        if (*name == '\0' || !value || !g_utf8_validate(*env, -1, NULL) ||
            !g_utf8_validate(value, -1, NULL)) {
            g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                        "--env %s: not NAME=VALUE in UTF-8, nor the name of a variable that is set",
                        *env);
            return NULL;
        }
        json_object_set_new(map, name, json_string(value));
    }
    return g_steal_pointer(&map);
}

static bool set_text(json_t *body, const char *name, const char *value, GError **error)
{
    if (!value || json_object_set_new(body, name, json_string(value)) == 0)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "%s is not UTF-8", name);
    return false;
}

static json_t *session_body(const struct sp_remote_command *c, GError **error)
{
    g_autoptr(json_t) body = json_object();
    json_t *argv = json_array();
    json_object_set_new(body, "command", argv);
    for (char *const *word = c->argv; *word; word++) {
        if (json_array_append_new(argv, json_string(*word)) != 0) {
            g_set_error_literal(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                                "the command's words have to be UTF-8");
            return NULL;
        }
    }
    json_t *env = sp_remote_env(c->env, error);
    if (!env)
        return NULL;
    if (json_object_size(env))
        json_object_set(body, "env", env);
    json_decref(env);
    if (!set_text(body, "cwd", c->cwd, error) || !set_text(body, "user", c->user, error) ||
        !set_text(body, "timeout", c->timeout, error) ||
        !set_text(body, "stdin", c->interactive ? "open" : "none", error))
        return NULL;
    return g_steal_pointer(&body);
}

bool sp_remote_check(const struct sp_remote_command *command, GError **error)
{
    g_autoptr(json_t) body = session_body(command, error);
    return body != NULL;
}

static void forward_sigint(void *user)
{
    struct sp_attachment *attachment = user;
    g_autoptr(GError) error = NULL;
    if (!sp_attachment_signal(attachment, "SIGINT", &error))
        fprintf(stderr, "space: the command could not be interrupted: %s\n", error->message);
}

static void on_started(void *user)
{
    struct stream *s = user;
    sp_interrupt_forward(s->interrupt, forward_sigint, s->attachment);
    if (s->interactive)
        s->pump = sp_stdin_pump_start(STDIN_FILENO, s->attachment);
}

static bool on_data(void *user, const char *bytes, size_t len)
{
    struct stream *s = user;
    s->last_bytes_ms = sp_time_monotonic_ms();
    if (sp_sse_parser_feed(s->parser, bytes, len, sp_event_sink_take, &s->sink))
        return true;
    s->bad_event = !s->sink.ended && !s->sink.write_failed && !sp_interrupt_cancelled(s->interrupt);
    return false;
}

static bool stream_over(void *user)
{
    struct stream *s = user;
    return sp_interrupt_cancelled(s->interrupt) ||
           sp_time_monotonic_ms() - s->last_bytes_ms > SILENCE_MS;
}

enum verdict { FINISHED, RETRY, FATAL };

/* One connection. RETRY: it broke and may be taken up again; FATAL: *error says why not. */
static enum verdict attach_once(struct stream *s, unsigned *refused, GError **error)
{
    g_autofree char *path = sp_attachment_path(s->attachment, "events");
    g_autofree char *last_id =
        g_strdup_printf("Last-Event-ID: %" G_GUINT64_FORMAT, (guint64)s->sink.last_id);
    const char *headers[3] = {"Accept: text/event-stream", s->sink.last_id ? last_id : NULL, NULL};
    struct sp_http_client *client = sp_attachment_client(s->attachment);
    struct sp_http_call call = {.method = "GET",
                                .path = path,
                                .headers = headers,
                                .on_data = on_data,
                                .cancelled = stream_over,
                                .user = s};
    struct sp_http_answer answer = {0};
    s->parser = sp_sse_parser_new(SP_EVENT_MAX_BYTES);
    s->last_bytes_ms = sp_time_monotonic_ms();
    bool answered = sp_http_call(client, &call, &answer, NULL);
    sp_sse_parser_free(g_steal_pointer(&s->parser));

    enum verdict verdict = RETRY;
    if (s->sink.ended || s->sink.write_failed || sp_interrupt_cancelled(s->interrupt)) {
        verdict = FINISHED;
    } else if (s->bad_event) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_INTERNAL,
                            "the server sent an event that is too long");
        verdict = FATAL;
    } else if (answered && answer.status == 401 && (*refused)++ == 0) {
        verdict = sp_attachment_renew(s->attachment, client, error) ? RETRY : FATAL;
    } else if (answered && (answer.status < 200 || answer.status > 299) && answer.status < 500) {
        if (answer.status >= 300 && answer.status < 400)
            g_set_error(error, SP_ERROR, SP_ERROR_PERMISSION_DENIED,
                        "the data plane redirects (%d), which is never followed", answer.status);
        else
            sp_http_answer_to_error(&answer, error);
        verdict = FATAL;
    }
    sp_http_answer_clear(&answer);
    return verdict;
}

/* "exited", "lost", …; "gone" when the server does not know the session; NULL when it cannot be
 * asked. */
static char *session_state(struct stream *s)
{
    g_autofree char *path =
        g_strconcat("/v1/sessions/", sp_attachment_session_id(s->attachment), NULL);
    g_autoptr(GError) error = NULL;
    g_autoptr(json_t) session = sp_client_get(s->api, path, &error);
    if (!session)
        return g_error_matches(error, SP_ERROR, SP_ERROR_NOT_FOUND) ? g_strdup("gone") : NULL;
    json_t *inner = json_object_get(session, "session");
    return g_strdup(json_string_value(json_object_get(inner ? inner : session, "state")));
}

static void pause_ms(struct stream *s, int64_t ms)
{
    int64_t end_ms = sp_time_monotonic_ms() + ms;
    while (sp_time_monotonic_ms() < end_ms && !sp_interrupt_cancelled(s->interrupt))
        g_usleep(20000);
}

/* Attaches, and attaches again after a cut, until the last event has come. */
static bool follow(struct stream *s, GError **error)
{
    unsigned refused = 0, fruitless = 0;
    for (;;) {
        uint64_t before = s->sink.last_id;
        enum verdict verdict = attach_once(s, &refused, error);
        if (verdict != RETRY)
            return verdict == FINISHED;
        if (s->sink.last_id > before)
            fruitless = refused = 0;
        fruitless++;
        g_autofree char *state = fruitless > 1 ? session_state(s) : NULL;
        bool over = g_strcmp0(state, "gone") == 0 || g_strcmp0(state, "lost") == 0 ||
                    g_strcmp0(state, "exited") == 0 || g_strcmp0(state, "failed") == 0;
        if (fruitless >= (over ? MAX_FRUITLESS_ENDED : MAX_FRUITLESS)) {
            g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE,
                        "the output ended without the command's exit (session %s is %s)",
                        sp_attachment_session_id(s->attachment), state ? state : "unreachable");
            return false;
        }
        pause_ms(s, MIN(INT64_C(50) << MIN(fruitless, 6), MAX_PAUSE_MS));
    }
}

/* The exit code once the stream is over. */
static int verdict_of(struct stream *s)
{
    int signal = sp_interrupt_signal(s->interrupt);
    if (!s->sink.ended && !s->sink.write_failed)
        return signal ? 128 + signal : SP_EXIT_PLATFORM;
    /* A success whose output is not whole is none. */
    if (s->sink.lost && s->sink.exit_code == 0)
        return SP_EXIT_PLATFORM;
    return s->sink.exit_code;
}

static int stream_session(struct sp_client *api, struct sp_attachment *attachment,
                          const struct sp_remote_command *command, struct sp_interrupt *interrupt,
                          bool *ret_suspended)
{
    struct stream s = {.api = api,
                       .attachment = attachment,
                       .interrupt = interrupt,
                       .interactive = command->interactive,
                       .sink = {.out_fd = STDOUT_FILENO,
                                .err_fd = STDERR_FILENO,
                                .json = command->json,
                                .interrupt = interrupt,
                                .on_started = on_started}};
    s.sink.user = &s;
    g_autoptr(GError) error = NULL;
    bool finished = follow(&s, &error);
    sp_interrupt_forward(interrupt, NULL, NULL);
    bool whole_input = sp_stdin_pump_stop(s.pump);
    if (ret_suspended)
        *ret_suspended = s.sink.suspended;
    if (!finished)
        return sp_output_error(error);
    int code = verdict_of(&s);
    return !whole_input && code == 0 ? SP_EXIT_PLATFORM : code;
}

int sp_remote_run(struct sp_client *api, const char *sandbox_path,
                  const struct sp_remote_command *command, struct sp_interrupt *interrupt,
                  bool *ret_suspended)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(json_t) body = session_body(command, &error);
    if (!body)
        return sp_output_error(error);
    g_autofree char *path = g_strconcat(sandbox_path, "/sessions", NULL);
    struct sp_client_request request = {.method = "POST",
                                        .path = path,
                                        .json = body,
                                        .cancel = {sp_interrupt_cancelled, interrupt}};
    g_autoptr(json_t) answer = sp_client_call(api, &request, NULL, &error);
    if (sp_interrupt_cancelled(interrupt))
        return 128 + sp_interrupt_signal(interrupt);
    if (!answer)
        return sp_output_error(error);
    SP_CLEANUP(sp_attachment_free_p)
    struct sp_attachment *attachment = sp_attachment_new(api, answer, &error);
    if (!attachment)
        return sp_output_error(error);
    fflush(stdout);
    return stream_session(api, attachment, command, interrupt, ret_suspended);
}
