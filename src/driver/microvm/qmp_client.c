#include "driver/microvm/qmp_client.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "base/time.h"
#include "os/endpoint.h"
#include "wire/qmp.h"

#define MAX_EVENTS 32u
#define READ_BYTES 16384u

struct sp_qmp {
    int fd;
    char *version;
    GByteArray *input; /* at most SP_QMP_MAX_LINE + READ_BYTES */
    GQueue events;     /* struct sp_qmp_message *, oldest first */
    json_int_t last_id;
};

static void message_free(void *data)
{
    struct sp_qmp_message *message = data;
    sp_qmp_message_clear(message);
    g_free(message);
}

void sp_qmp_free(struct sp_qmp *qmp)
{
    if (!qmp)
        return;
    close(qmp->fd);
    g_free(qmp->version);
    g_byte_array_unref(qmp->input);
    g_queue_clear_full(&qmp->events, message_free);
    g_free(qmp);
}

const char *sp_qmp_version(const struct sp_qmp *qmp)
{
    return qmp->version;
}

/* Waits for readiness; false with SP_ERROR_UNAVAILABLE after the deadline. */
static bool wait_ready(struct sp_qmp *qmp, short what, int64_t deadline_ms, GError **error)
{
    for (;;) {
        int64_t left = deadline_ms - sp_time_monotonic_ms();
        struct pollfd p = {.fd = qmp->fd, .events = what};
        int n = poll(&p, 1, (int)CLAMP(left, 0, G_MAXINT));
        if (n > 0)
            return true;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "QMP: poll");
            return false;
        }
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "QMP: no answer in time");
        return false;
    }
}

/* Reads once; appends to the input. */
static bool read_some(struct sp_qmp *qmp, int64_t deadline_ms, GError **error)
{
    uint8_t bytes[READ_BYTES];
    for (;;) {
        ssize_t n = recv(qmp->fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n > 0) {
            g_byte_array_append(qmp->input, bytes, (guint)n);
            return true;
        }
        if (n == 0) {
            g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "QMP: QEMU closed the connection");
            return false;
        }
        if (errno == EAGAIN) {
            if (!wait_ready(qmp, POLLIN, deadline_ms, error))
                return false;
        } else if (errno != EINTR) {
            sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "QMP: read");
            return false;
        }
    }
}

static bool next_message(struct sp_qmp *qmp, int64_t deadline_ms, struct sp_qmp_message *ret,
                         GError **error)
{
    for (;;) {
        const char *text = (const char *)qmp->input->data;
        size_t len = sp_qmp_line_length(text, qmp->input->len);
        if (len > 0) {
            bool ok = sp_qmp_parse(text, len, ret, error);
            g_byte_array_remove_range(qmp->input, 0, (guint)len);
            return ok;
        }
        if (qmp->input->len > SP_QMP_MAX_LINE) {
            g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "QMP: line too long");
            return false;
        }
        if (!read_some(qmp, deadline_ms, error))
            return false;
    }
}

static void keep_event(struct sp_qmp *qmp, const struct sp_qmp_message *message)
{
    if (qmp->events.length >= MAX_EVENTS)
        message_free(g_queue_pop_head(&qmp->events));
    g_queue_push_tail(&qmp->events, g_memdup2(message, sizeof *message));
}

/* The first bytes carry pass_fd (unix(7), SCM_RIGHTS). */
static ssize_t send_once(struct sp_qmp *qmp, const char *bytes, size_t len, int pass_fd)
{
    struct iovec iov = {.iov_base = (char *)bytes, .iov_len = len};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (pass_fd >= 0) {
        msg.msg_control = &control;
        msg.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &pass_fd, sizeof pass_fd);
    }
    return sendmsg(qmp->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static bool send_all(struct sp_qmp *qmp, const char *text, int pass_fd, int64_t deadline_ms,
                     GError **error)
{
    size_t left = strlen(text);
    while (left > 0) {
        ssize_t n = send_once(qmp, text, left, pass_fd);
        if (n > 0) {
            text += n;
            left -= (size_t)n;
            pass_fd = -1;
        } else if (n < 0 && errno == EAGAIN) {
            if (!wait_ready(qmp, POLLOUT, deadline_ms, error))
                return false;
        } else if (n < 0 && errno != EINTR) {
            sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "QMP: write");
            return false;
        }
    }
    return true;
}

/* The answer to the command with this id. Answers to earlier commands (whose callers gave up) are
 * dropped. */
static json_t *await_answer(struct sp_qmp *qmp, const char *command, int64_t deadline_ms,
                            GError **error)
{
    for (;;) {
        struct sp_qmp_message message;
        if (!next_message(qmp, deadline_ms, &message, error))
            return NULL;
        if (message.kind == SP_QMP_EVENT) {
            keep_event(qmp, &message);
            continue;
        }
        if (message.kind == SP_QMP_RETURN && message.has_id && message.id == qmp->last_id)
            return message.data;
        /* An error about input that could not be parsed carries no id: it is ours all the same. */
        if (message.kind == SP_QMP_FAILURE && (!message.has_id || message.id == qmp->last_id)) {
            g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION, "QEMU refused %s: %s",
                        command, message.text);
            sp_qmp_message_clear(&message);
            return NULL;
        }
        sp_qmp_message_clear(&message);
    }
}

json_t *sp_qmp_call(struct sp_qmp *qmp, const char *command, json_t *arguments, int pass_fd,
                    int64_t timeout_ms, GError **error)
{
    int64_t deadline_ms = sp_time_monotonic_ms() + timeout_ms;
    g_autofree char *text = sp_qmp_command(command, arguments, ++qmp->last_id);
    if (!send_all(qmp, text, pass_fd, deadline_ms, error))
        return NULL;
    return await_answer(qmp, command, deadline_ms, error);
}

bool sp_qmp_run(struct sp_qmp *qmp, const char *command, json_t *arguments, int pass_fd,
                int64_t timeout_ms, GError **error)
{
    g_autoptr(json_t) value = sp_qmp_call(qmp, command, arguments, pass_fd, timeout_ms, error);
    return value != NULL;
}

/* Takes the oldest kept event of this name; NULL when there is none. */
static json_t *take_event(struct sp_qmp *qmp, const char *event)
{
    for (GList *at = qmp->events.head; at; at = at->next) {
        struct sp_qmp_message *message = at->data;
        if (strcmp(message->name, event) != 0)
            continue;
        json_t *data = message->data ? json_incref(message->data) : json_object();
        message_free(message);
        g_queue_delete_link(&qmp->events, at);
        return data;
    }
    return NULL;
}

json_t *sp_qmp_wait_event(struct sp_qmp *qmp, const char *event, int64_t timeout_ms, GError **error)
{
    int64_t deadline_ms = sp_time_monotonic_ms() + timeout_ms;
    for (;;) {
        json_t *data = take_event(qmp, event);
        if (data)
            return data;
        struct sp_qmp_message message;
        if (!next_message(qmp, deadline_ms, &message, error)) {
            g_prefix_error(error, "waiting for %s: ", event);
            return NULL;
        }
        if (message.kind == SP_QMP_EVENT)
            keep_event(qmp, &message);
        else
            sp_qmp_message_clear(&message);
    }
}

static bool greet(struct sp_qmp *qmp, int64_t timeout_ms, GError **error)
{
    struct sp_qmp_message message;
    if (!next_message(qmp, sp_time_monotonic_ms() + timeout_ms, &message, error))
        return false;
    if (message.kind != SP_QMP_GREETING) {
        sp_qmp_message_clear(&message);
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "QMP: no greeting");
        return false;
    }
    qmp->version = g_steal_pointer(&message.name);
    sp_qmp_message_clear(&message);
    return sp_qmp_run(qmp, "qmp_capabilities", NULL, -1, timeout_ms, error);
}

struct sp_qmp *sp_qmp_open(int fd, int64_t timeout_ms, GError **error)
{
    struct sp_qmp *qmp = g_new0(struct sp_qmp, 1);
    qmp->fd = fd;
    qmp->input = g_byte_array_new();
    g_queue_init(&qmp->events);
    if (!greet(qmp, timeout_ms, error)) {
        sp_qmp_free(qmp);
        return NULL;
    }
    return qmp;
}

struct sp_qmp *sp_qmp_connect(const char *dir, const char *name, int64_t timeout_ms, GError **error)
{
    int fd = sp_endpoint_connect(dir, name, timeout_ms, error);
    return fd < 0 ? NULL : sp_qmp_open(fd, timeout_ms, error);
}
