#include "node/attach.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "node/event_text.h"
#include "node/session_run.h"

#define KEEP_ALIVE_US (15 * G_USEC_PER_SEC)
/* How often the stream looks whether its client or the worker has gone. */
#define LOOK_US (500 * 1000)
/* A reader that has nothing to read for so long has read what it was given: it is acknowledged. */
#define SETTLE_US (20 * 1000)
/* The end of a stream waits so long for the server to know of the command's end: a client that has
 * seen it may ask for the session next. */
#define REPORT_WAIT_MS 500
/* What may lie between us and the client, in socket buffers: events are acknowledged when so much
 * was written behind them, so that a worker that dies leaves them in the agent's ring. */
#define LAG_BYTES (256u << 10)

/* Where an event ends in the stream. */
struct written {
    uint64_t event_id, weight_end;
    uint64_t bytes_first, bytes_end; /* of the stream: where its first and its last event end */
};

struct stream {
    struct sp_node *node;
    struct sp_http_request *request;
    struct sp_session *session; /* a reference */
    struct sp_link_sub *sub;
    GString *spill; /* text that did not fit, from spill_at on */
    gsize spill_at;
    uint64_t bytes;      /* written so far */
    uint64_t bytes_made; /* the same with what is in the spill */
    GQueue unacked;      /* struct written *, oldest first; small events share one */
    int64_t last_write_us;
    bool over; /* the last event is written (or in the spill) */
    bool suspended;
};

static void stream_free(void *data)
{
    struct stream *stream = data;
    sp_link_sub_free(stream->sub);
    sp_sessions_attach(stream->node->sessions, stream->session, -1);
    sp_session_unref(stream->session);
    g_string_free(stream->spill, TRUE);
    g_queue_clear_full(&stream->unacked, g_free);
    g_free(stream);
}

/* --- acknowledgements */
static void remember(struct stream *stream, const struct sp_link_event *event, size_t text_len)
{
    stream->bytes_made += text_len;
    struct written *last = g_queue_peek_tail(&stream->unacked);
    if (!last || stream->bytes_made - last->bytes_first > LAG_BYTES / 16) {
        last = g_new(struct written, 1);
        last->bytes_first = stream->bytes_made;
        g_queue_push_tail(&stream->unacked, last);
    }
    last->event_id = event->id;
    last->weight_end = event->weight_end;
    last->bytes_end = stream->bytes_made;
}

static void acknowledge(struct stream *stream, uint64_t lag_bytes)
{
    struct written *newest = NULL, *head;
    while ((head = g_queue_peek_head(&stream->unacked)) &&
           head->bytes_end + lag_bytes <= stream->bytes) {
        g_free(newest);
        newest = g_queue_pop_head(&stream->unacked);
    }
    if (newest)
        sp_link_sub_ack(stream->sub, newest->event_id, newest->weight_end);
    g_free(newest);
}

/* --- writing */
static size_t put_spill(struct stream *stream, char *buffer, size_t max)
{
    size_t n = MIN(stream->spill->len - stream->spill_at, max);
    memcpy(buffer, stream->spill->str + stream->spill_at, n);
    stream->spill_at += n;
    if (stream->spill_at == stream->spill->len) {
        g_string_truncate(stream->spill, 0);
        stream->spill_at = 0;
    }
    return n;
}

/* Writes an event into the buffer if it fits, else through the spill. */
static size_t put_event(struct stream *stream, const struct sp_link_event *event, char *buffer,
                        size_t max)
{
    if (event->kind == SP_EVENT_EXITED || event->kind == SP_EVENT_ERROR) {
        stream->over = true;
        sp_sessions_ended(stream->node->sessions, stream->session, event);
    }
    size_t need = sp_event_text_max(event);
    if (need <= max) {
        size_t len = sp_event_text(event, buffer);
        remember(stream, event, len);
        return len;
    }
    g_string_set_size(stream->spill, need);
    stream->spill->len = sp_event_text(event, stream->spill->str);
    remember(stream, event, stream->spill->len);
    return put_spill(stream, buffer, max);
}

static size_t put_error(struct stream *stream, const char *code, const char *message, char *buffer,
                        size_t max)
{
    stream->over = true;
    sp_event_text_error(stream->spill, code, message);
    stream->bytes_made += stream->spill->len;
    return put_spill(stream, buffer, max);
}

/* The stream ends, the session does not: the client attaches again once the sandbox is woken. */
static size_t put_suspended(struct stream *stream, char *buffer, size_t max)
{
    stream->over = stream->suspended = true;
    sp_event_text_suspended(stream->spill);
    stream->bytes_made += stream->spill->len;
    return put_spill(stream, buffer, max);
}

static size_t put_gap(struct stream *stream, char *buffer, size_t max)
{
    uint64_t oldest, next;
    sp_link_sub_gap(stream->sub, &oldest, &next);
    sp_event_text_resync(stream->spill, next - 1, oldest);
    stream->bytes_made += stream->spill->len;
    return put_spill(stream, buffer, max);
}

/* One pull from the link, written out. Number of bytes; 0: nothing came in time; -1: cut the
 * stream. */
static ssize_t put_next(struct stream *stream, int64_t deadline_us, char *buffer, size_t max)
{
    struct sp_link_event *taken = NULL;
    enum sp_pull pull = sp_link_sub_pull(stream->sub, deadline_us, &taken);
    g_autofree struct sp_link_event *event = taken;
    switch (pull) {
    case SP_PULL_EVENT:
        return (ssize_t)put_event(stream, event, buffer, max);
    case SP_PULL_GAP:
        return (ssize_t)put_gap(stream, buffer, max);
    case SP_PULL_LOST:
        sp_sessions_lost(stream->node->sessions, stream->session, sp_link_sub_reason(stream->sub));
        return (ssize_t)put_error(stream, "lost", sp_link_sub_reason(stream->sub), buffer, max);
    case SP_PULL_UNREACHABLE:
        return (ssize_t)put_error(stream, "unavailable",
                                  "the sandbox does not answer; attach again with Last-Event-ID",
                                  buffer, max);
    case SP_PULL_SUSPENDED:
        return (ssize_t)put_suspended(stream, buffer, max);
    case SP_PULL_TIMEOUT:
        return 0;
    default: /* STOPPED: the end of the command is not known, so none is told */
        return -1;
    }
}

/* Waits for the first bytes of a pull. */
static ssize_t wait_for_bytes(struct stream *stream, char *buffer, size_t max)
{
    ssize_t n = put_next(stream, sp_time_monotonic_us() + SETTLE_US, buffer, max);
    if (n != 0)
        return n;
    acknowledge(stream, 0);
    for (;;) {
        n = put_next(stream, sp_time_monotonic_us() + LOOK_US, buffer, max);
        if (n != 0)
            return n;
        if (sp_node_stopping(stream->node) ||
            sp_http_server_stopping(sp_http_request_server(stream->request)) ||
            sp_http_client_gone(stream->request))
            return -1;
        if (sp_time_monotonic_us() - stream->last_write_us >= KEEP_ALIVE_US) {
            static const char comment[] = ": keep-alive\n\n";
            n = (ssize_t)MIN(sizeof(comment) - 1, max);
            memcpy(buffer, comment, (size_t)n);
            stream->bytes_made += (uint64_t)n;
            return n;
        }
    }
}

static ssize_t stream_pull(void *data, char *buffer, size_t max)
{
    struct stream *stream = data;
    size_t len = 0;
    acknowledge(stream, LAG_BYTES);
    if (stream->spill->len > 0) {
        len = put_spill(stream, buffer, max);
    } else if (stream->over) {
        acknowledge(stream, 0);
        /* The last event is out; only the end of the stream waits. */
        if (!stream->suspended)
            sp_sessions_await_taken(stream->node->sessions, stream->session, REPORT_WAIT_MS);
        return 0;
    } else {
        ssize_t n = wait_for_bytes(stream, buffer, max);
        if (n < 0)
            return n;
        len = (size_t)n;
    }
    /* What is there already goes into the same piece. */
    while (!stream->over && stream->spill->len == 0 && max - len > SP_EVENT_TEXT_OVERHEAD &&
           sp_link_sub_ready(stream->sub)) {
        ssize_t n = put_next(stream, 0, buffer + len, max - len);
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    stream->bytes += len;
    stream->last_write_us = sp_time_monotonic_us();
    return (ssize_t)len;
}

/* --- the request */
bool sp_attach_authorize(struct sp_http_request *request, void *user, GError **error)
{
    struct sp_node *node = user;
    struct sp_session *session = sp_sessions_authorize(node->sessions, sp_http_param(request, 0),
                                                       sp_http_bearer(request), error);
    if (!session)
        return false;
    sp_http_set_data(request, session, (GDestroyNotify)sp_session_unref);
    return true;
}

/* Last-Event-ID; 0 when there is none. */
static bool last_event_id(struct sp_http_request *request, uint64_t *ret, GError **error)
{
    const char *text = sp_http_header(request, "Last-Event-ID");
    if (!text || !*text) {
        *ret = 0;
        return true;
    }
    return g_ascii_string_to_unsigned(text, 10, 0, UINT64_MAX / 2, ret, NULL) ||
           (g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                        "Last-Event-ID is not an event id of this stream"),
            false);
}

/* Whether a reader that comes back has had everything, the end included. */
static bool has_all(struct sp_link *link, const struct sp_session *session, uint64_t after_event)
{
    struct sp_msg_session now;
    return after_event > 0 &&
           sp_link_session_stat(link, session->id,
                                sp_time_monotonic_us() + SP_SESSION_OPEN_MS * (int64_t)1000, &now,
                                NULL) &&
           now.state == SP_MSG_SESSION_ENDED && after_event + 1 == now.next_event;
}

/* NULL without an error: nothing is left to be read. */
static struct sp_link_sub *open_events(struct sp_node *node, struct sp_session *session,
                                       uint64_t after_event, GError **error)
{
    struct sp_sandbox_use use;
    struct sp_link_sub *sub = NULL;
    if (!sp_table_use(node->table, session->sandbox_id, &use, error))
        return NULL;
    if (!has_all(use.link, session, after_event))
        sub = sp_session_open(node, session, &use, after_event, error);
    sp_sandbox_use_clear(&use);
    return sub;
}

void sp_attach_events(struct sp_http_request *request, void *user)
{
    struct sp_node *node = user;
    struct sp_session *session = sp_http_data(request);
    g_autoptr(GError) error = NULL;
    uint64_t after_event;
    struct sp_link_sub *sub = NULL;
    if (last_event_id(request, &after_event, &error))
        sub = open_events(node, session, after_event, &error);
    if (!sub) {
        if (error)
            sp_http_respond_error(request, error);
        else /* tells an EventSource not to come back */
            sp_http_respond_bytes(request, 204, NULL, "", 0);
        return;
    }
    struct stream *stream = g_new0(struct stream, 1);
    stream->node = node;
    stream->request = request;
    stream->session = sp_session_ref(session);
    stream->sub = sub;
    stream->spill = g_string_new(NULL);
    stream->last_write_us = sp_time_monotonic_us();
    g_queue_init(&stream->unacked);
    sp_sessions_attach(node->sessions, session, 1);
    sp_http_add_header(request, "Cache-Control", "no-store");
    sp_http_add_header(request, "X-Accel-Buffering", "no"); /* proxies: pass it on as it comes */
    sp_http_respond_stream(request, 200, "text/event-stream", stream_pull, stream, stream_free);
}
