#include "cli/events.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/command.h"

static const struct {
    const char *code;
    int exit_code;
} error_exits[] = {
    {"command_not_found", SP_EXIT_NOT_FOUND},
    {"cwd_not_found", SP_EXIT_NOT_FOUND},
    {"not_executable", SP_EXIT_NOT_EXECUTABLE},
};

int sp_event_exit_code(const json_t *event)
{
    const char *type = json_string_value(json_object_get(event, "type"));
    if (g_strcmp0(type, "process_exited") == 0) {
        json_t *code = json_object_get(event, "exit_code");
        json_t *signal = json_object_get(event, "signal");
        if (json_is_true(json_object_get(event, "timed_out")))
            return SP_EXIT_TIMEOUT;
        if (json_is_integer(signal) && json_integer_value(signal) > 0 &&
            json_integer_value(signal) < 128)
            return 128 + (int)json_integer_value(signal);
        if (json_is_integer(code) && json_integer_value(code) >= 0 &&
            json_integer_value(code) <= 255)
            return (int)json_integer_value(code);
        return SP_EXIT_PLATFORM;
    }
    const char *name = json_string_value(json_object_get(event, "code"));
    for (size_t i = 0; i < G_N_ELEMENTS(error_exits); i++) {
        if (g_strcmp0(name, error_exits[i].code) == 0)
            return error_exits[i].exit_code;
    }
    return SP_EXIT_PLATFORM;
}

bool sp_write_fully(int fd, const void *bytes, size_t len, struct sp_interrupt *interrupt)
{
    const char *at = bytes;
    while (len > 0) {
        struct pollfd fds[2] = {
            {.fd = fd, .events = POLLOUT},
            {.fd = interrupt ? sp_interrupt_fd(interrupt) : -1, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0) {
            if (errno == EINTR)
                continue;
            return false;
        }
        if (fds[1].revents) {
            errno = 0;
            return false;
        }
        /* A pipe that polls writable takes PIPE_BUF bytes without blocking (pipe(7)). */
        ssize_t n = write(fd, at, MIN(len, PIPE_BUF));
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return false;
        if (n > 0) {
            at += n;
            len -= (size_t)n;
        }
    }
    return true;
}

static bool write_output(struct sp_event_sink *sink, int fd, const void *bytes, size_t len)
{
    if (sp_write_fully(fd, bytes, len, sink->interrupt))
        return true;
    if (errno == 0)
        return false; /* cancelled: the caller sees that for itself */
    sink->write_failed = true;
    sink->exit_code = errno == EPIPE ? 128 + SIGPIPE : SP_EXIT_PLATFORM;
    if (errno != EPIPE)
        fprintf(stderr, "space: cannot write the output: %s\n", g_strerror(errno));
    return false;
}

static bool take_data(struct sp_event_sink *sink, int fd, const json_t *event)
{
    const char *data = json_string_value(json_object_get(event, "data"));
    if (!data)
        return true;
    gsize len = 0;
    g_autofree guchar *bytes = g_base64_decode(data, &len);
    return write_output(sink, fd, bytes, len);
}

static void take_end(struct sp_event_sink *sink, const json_t *event)
{
    sink->ended = true;
    sink->exit_code = sp_event_exit_code(event);
    const char *message = json_string_value(json_object_get(event, "message"));
    const char *code = json_string_value(json_object_get(event, "code"));
    if (strcmp(json_string_value(json_object_get(event, "type")), "error") == 0)
        fprintf(stderr, "space: %s (%s)\n", message ? message : "the command did not run",
                code ? code : "internal");
    else if (json_is_true(json_object_get(event, "timed_out")))
        fputs("space: the command's time was up\n", stderr);
    else if (json_is_true(json_object_get(event, "oom")))
        fputs("space: the command was killed: out of memory\n", stderr);
    else if (sink->exit_code == SP_EXIT_PLATFORM &&
             !json_is_integer(json_object_get(event, "exit_code")))
        fputs("space: the server gave no exit code\n", stderr);
}

static bool handle(struct sp_event_sink *sink, const char *type, const json_t *event)
{
    if (strcmp(type, "started") == 0) {
        if (!sink->started && sink->on_started)
            sink->on_started(sink->user);
        sink->started = true;
    } else if (strcmp(type, "stdout") == 0) {
        return sink->json || take_data(sink, sink->out_fd, event);
    } else if (strcmp(type, "stderr") == 0) {
        return sink->json || take_data(sink, sink->err_fd, event);
    } else if (strcmp(type, "resync_required") == 0 || strcmp(type, "dropped") == 0) {
        sink->lost = true;
        fputs("space: some of the output is lost\n", stderr);
    } else if (strcmp(type, "suspended") == 0) {
        sink->ended = sink->suspended = true;
        sink->exit_code = SP_EXIT_PLATFORM;
        fputs("space: the sandbox was suspended; the command goes on after `space wake`\n", stderr);
        return false;
    } else if (strcmp(type, "process_exited") == 0 || strcmp(type, "error") == 0) {
        take_end(sink, event);
        return false;
    }
    return true; /* types that we do not know are for newer clients */
}

bool sp_event_sink_take(void *user, const struct sp_sse_event *sse)
{
    struct sp_event_sink *sink = user;
    g_autoptr(json_t) event = sp_json_parse(sse->data, sse->data_len, NULL);
    const char *type = json_string_value(json_object_get(event, "type"));
    if (!type)
        return true;
    guint64 id = 0;
    bool output = strcmp(type, "stdout") == 0 || strcmp(type, "stderr") == 0;
    if (!g_ascii_string_to_unsigned(sse->id, 10, 1, G_MAXUINT64, &id, NULL))
        id = 0;
    if (output && id && id <= sink->last_id)
        return true; /* a replay of what was written already */
    if (sink->json) {
        g_autofree char *line = sp_json_dump(event);
        g_autofree char *with_newline = g_strconcat(line, "\n", NULL);
        if (!write_output(sink, sink->out_fd, with_newline, strlen(with_newline)))
            return false;
    }
    bool more = handle(sink, type, event);
    if (id > sink->last_id)
        sink->last_id = id;
    return more;
}
