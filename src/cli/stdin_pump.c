/*
 * An upload lasts only as long as input keeps coming: when none is there for IDLE_MS the request is
 * ended properly, so that no request hangs idle for hours while somebody thinks at a terminal, and
 * a bulk transfer is still one stream. What a broken upload had delivered is not known, so it is
 * never sent again: better no input than input twice.
 */
#include "cli/stdin_pump.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"

#define IDLE_MS 20
#define FIRST_BYTES 65536
#define CLOSE_TIMEOUT_MS 30000
#define MAX_REFUSED 2

struct sp_stdin_pump {
    GThread *thread;
    struct sp_attachment *attachment;
    int fd;
    int stop_fd; /* eventfd */
    atomic_bool stop;
    /* Of the thread alone, until it is joined. */
    char first[FIRST_BYTES]; /* read before the upload begins; can be sent again if it is refused */
    size_t first_len, first_at;
    bool end_of_file;
    bool more_taken; /* bytes beyond `first` were read for the current upload */
    bool lost;
    unsigned refused; /* times that the token was refused in a row */
};

static bool stopped(void *user)
{
    struct sp_stdin_pump *p = user;
    return atomic_load(&p->stop);
}

/* Whether input (or its end) is there within timeout_ms; -1: no limit. */
static bool wait_input(struct sp_stdin_pump *p, int timeout_ms)
{
    for (;;) {
        struct pollfd fds[2] = {{.fd = p->fd, .events = POLLIN},
                                {.fd = p->stop_fd, .events = POLLIN}};
        int n = poll(fds, 2, timeout_ms);
        if (n < 0 && errno == EINTR)
            continue;
        return n > 0 && !fds[1].revents && fds[0].revents;
    }
}

/* Reads once; 0 at the end of the file or when there is nothing after all. */
static size_t read_input(struct sp_stdin_pump *p, char *buffer, size_t max)
{
    ssize_t n;
    do {
        n = read(p->fd, buffer, max);
    } while (n < 0 && errno == EINTR);
    if (n == 0 || (n < 0 && errno != EAGAIN))
        p->end_of_file = true;
    return n > 0 ? (size_t)n : 0;
}

static ssize_t upload(void *user, char *buffer, size_t max)
{
    struct sp_stdin_pump *p = user;
    if (p->first_at < p->first_len) {
        size_t n = MIN(max, p->first_len - p->first_at);
        memcpy(buffer, p->first + p->first_at, n);
        p->first_at += n;
        return (ssize_t)n;
    }
    if (p->end_of_file || !wait_input(p, IDLE_MS))
        return stopped(p) ? -1 : 0;
    size_t n = read_input(p, buffer, max);
    p->more_taken = p->more_taken || n > 0;
    return (ssize_t)n;
}

enum verdict { GO_ON, AGAIN, GIVE_UP };

/* {"closed": true}: the command has closed its end and takes no more. */
static bool says_closed(const struct sp_http_answer *answer)
{
    gsize len = 0;
    const char *text = answer->body ? g_bytes_get_data(answer->body, &len) : NULL;
    g_autoptr(json_t) body = len ? sp_json_parse(text, len, NULL) : NULL;
    return json_is_true(json_object_get(body, "closed"));
}

/* What an answer to stdin or close-stdin means. */
static enum verdict judge(struct sp_stdin_pump *p, struct sp_http_client *client, bool answered,
                          const struct sp_http_answer *answer, const GError *cause)
{
    if (answered && answer->status >= 200 && answer->status < 300) {
        p->refused = 0;
        return says_closed(answer) ? GIVE_UP : GO_ON;
    }
    if (stopped(p))
        return GIVE_UP;
    g_autoptr(GError) error = NULL;
    if (answered && answer->status == 409)
        return GIVE_UP; /* the command has ended or closed its input: nobody wants the rest */
    if (answered && answer->status == 401 && !p->more_taken && p->refused++ < MAX_REFUSED &&
        sp_attachment_renew(p->attachment, client, &error))
        return AGAIN;
    if (answered && !error)
        sp_http_answer_to_error(answer, &error);
    p->lost = true;
    fprintf(stderr, "space: the command's input broke off: %s\n",
            error ? error->message : cause->message);
    return GIVE_UP;
}

static enum verdict post(struct sp_stdin_pump *p, const char *verb, bool streamed)
{
    g_autofree char *path = sp_attachment_path(p->attachment, verb);
    struct sp_http_client *client = sp_attachment_client(p->attachment);
    struct sp_http_call call = {.method = "POST",
                                .path = path,
                                .timeout_ms = streamed ? 0 : CLOSE_TIMEOUT_MS,
                                .on_upload = streamed ? upload : NULL,
                                .cancelled = stopped,
                                .user = p};
    struct sp_http_answer answer = {0};
    g_autoptr(GError) cause = NULL;
    p->first_at = 0;
    p->more_taken = false;
    bool answered = sp_http_call(client, &call, &answer, &cause);
    enum verdict verdict = judge(p, client, answered, &answer, cause);
    sp_http_answer_clear(&answer);
    return verdict;
}

static gpointer pump_thread(gpointer data)
{
    struct sp_stdin_pump *p = data;
    enum verdict verdict = GO_ON;
    while (!p->end_of_file) {
        if (verdict != AGAIN) {
            if (!wait_input(p, -1))
                return NULL; /* stopped */
            p->first_len = read_input(p, p->first, sizeof p->first);
        }
        if (p->first_len && (verdict = post(p, "stdin", true)) == GIVE_UP)
            return NULL;
    }
    while (verdict == AGAIN)
        verdict = post(p, "stdin", true);
    if (verdict == GIVE_UP)
        return NULL;
    while (post(p, "close-stdin", false) == AGAIN)
        ;
    return NULL;
}

struct sp_stdin_pump *sp_stdin_pump_start(int fd, struct sp_attachment *attachment)
{
    struct sp_stdin_pump *p = g_new0(struct sp_stdin_pump, 1);
    p->fd = fd;
    p->attachment = attachment;
    p->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (p->stop_fd < 0)
        g_error("eventfd: %s", g_strerror(errno));
    p->thread = g_thread_new("stdin", pump_thread, p);
    return p;
}

bool sp_stdin_pump_stop(struct sp_stdin_pump *p)
{
    if (!p)
        return true;
    atomic_store(&p->stop, true);
    uint64_t one = 1;
    ssize_t n = write(p->stop_fd, &one, sizeof one);
    (void)n; /* cannot overflow */
    g_thread_join(p->thread);
    bool whole = !p->lost;
    close(p->stop_fd);
    g_free(p);
    return whole;
}
