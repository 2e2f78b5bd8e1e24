#include "peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"

struct connection {
    struct peer *peer;
    const struct misdeed *bad;
    int fd;
    uint64_t sent;
    bool cut;
    uint32_t sub;
    uint64_t next_event, credit, used;
    bool subscribed, greeted, told_ready;
    uint64_t accepted;
};

void peer_fill(uint8_t *bytes, size_t len, uint64_t event_id)
{
    static const uint8_t pattern[] = {'S', 'P', 'A', '1', 2, 0, 0, 0, 60, 0, 0, 0};
    for (size_t i = 0; i < len; i++)
        bytes[i] = (uint8_t)(pattern[i % sizeof(pattern)] ^ (i >= 24 ? event_id : 0));
}

static void put(struct connection *c, const void *bytes, size_t len)
{
    const uint8_t *at = bytes;
    if (c->cut)
        return;
    if (c->bad->cut_after && c->sent + len > c->bad->cut_after) {
        len = c->bad->cut_after > c->sent ? (size_t)(c->bad->cut_after - c->sent) : 0;
        c->cut = true;
    }
    while (len > 0) {
        ssize_t n = send(c->fd, at, len, MSG_NOSIGNAL);
        if (n <= 0) {
            c->cut = true;
            return;
        }
        at += n;
        len -= (size_t)n;
        c->sent += (uint64_t)n;
    }
}

static void put_frame(struct connection *c, uint8_t type, uint32_t tag, const struct sp_pack *p)
{
    g_autofree uint8_t *frame = g_malloc(SP_FRAME_HEADER_BYTES + (p ? p->len : 0));
    struct sp_frame_header header = {type, p ? (uint32_t)p->len : 0, tag};
    sp_frame_header_encode(&header, frame);
    if (p && p->len)
        memcpy(frame + SP_FRAME_HEADER_BYTES, p->bytes, p->len);
    put(c, frame, SP_FRAME_HEADER_BYTES + (p ? p->len : 0));
}

static void hello(struct connection *c, const uint8_t *payload, size_t len)
{
    struct sp_msg_hello m;
    uint8_t bytes[128];
    struct sp_pack p;
    g_assert_true(sp_msg_hello_decode(payload, len, &m));
    c->peer->hellos++;
    if (c->bad->silent_hellos && !c->greeted) {
        c->greeted = true;
        return;
    }
    c->greeted = true;
    struct sp_msg_hello_ok ok = {.version = 1, .identified = 1};
    ok.instance[0] = c->bad->new_instance;
    if (c->bad->wrong_nonce) {
        sp_pack_init(&p, bytes, sizeof(bytes));
        sp_msg_hello_ok_encode(&p, &ok);
        put_frame(c, SP_FRAME_HELLO_OK, 0, &p);
    }
    memcpy(ok.nonce, m.nonce, sizeof(ok.nonce));
    sp_pack_init(&p, bytes, sizeof(bytes));
    sp_msg_hello_ok_encode(&p, &ok);
    put_frame(c, SP_FRAME_HELLO_OK, 0, &p);
}

static void started(struct connection *c, uint32_t tag)
{
    uint8_t bytes[128];
    struct sp_pack p;
    struct sp_msg_session m = {.state = SP_MSG_SESSION_RUNNING,
                               .pid = 7,
                               .oldest_event = 1,
                               .next_event = c->peer->n_events + 1};
    sp_pack_init(&p, bytes, sizeof(bytes));
    sp_msg_session_encode(&p, &m);
    put_frame(c, SP_FRAME_STARTED, tag, &p);
}

static size_t event(struct connection *c, uint64_t id, struct sp_pack *p)
{
    struct sp_msg_event m = {.event_id = id, .kind = SP_EVENT_STDOUT, .pid = 7};
    g_autofree uint8_t *data = g_malloc(c->peer->event_bytes);
    if (id == 1) {
        m.kind = SP_EVENT_STARTED;
    } else if (id == c->peer->n_events) {
        m.kind = SP_EVENT_EXITED;
        m.exit.exit_code = 5;
    } else {
        peer_fill(data, c->peer->event_bytes, id);
        m.data = (struct sp_span){data, c->peer->event_bytes};
    }
    p->len = 0;
    sp_msg_event_encode(p, &m);
    return p->len;
}

static void pump(struct connection *c)
{
    g_autofree uint8_t *bytes = g_malloc(SP_FRAME_MAX_PAYLOAD);
    struct sp_pack p;
    sp_pack_init(&p, bytes, SP_FRAME_MAX_PAYLOAD);
    while (c->subscribed && !c->cut && c->next_event <= c->peer->n_events) {
        size_t len = event(c, c->next_event, &p);
        if (c->used + len > c->credit && !c->bad->over_credit)
            return;
        bool leave_out = c->bad->out_of_order && c->next_event == 2;
        if (!leave_out)
            put_frame(c, SP_FRAME_EVENT, c->sub, &p);
        if (c->bad->events_after_end && c->next_event == c->peer->n_events)
            put_frame(c, SP_FRAME_EVENT, c->sub, &p);
        c->used += len;
        c->next_event++;
        g_mutex_lock(&c->peer->lock);
        c->peer->sent_events_bytes += len;
        g_mutex_unlock(&c->peer->lock);
    }
}

static void subscribe(struct connection *c, uint32_t tag, const uint8_t *payload, size_t len)
{
    struct sp_msg_subscribe m;
    uint8_t bytes[64];
    struct sp_pack p;
    uint64_t n = c->peer->n_events;
    g_assert_true(sp_msg_subscribe_decode(payload, len, &m));
    g_assert_cmpuint(m.credit_bytes, >=, 65536);
    struct sp_msg_subscribed answer = {1, n + 1, m.after_event + 1, 0};
    if (c->bad->gap && m.after_event + 1 < n) {
        answer.oldest_event = answer.first_event = n;
        answer.gap = 1;
    }
    sp_pack_init(&p, bytes, sizeof(bytes));
    sp_msg_subscribed_encode(&p, &answer);
    put_frame(c, SP_FRAME_SUBSCRIBED, tag, &p);
    c->sub = tag;
    c->credit = m.credit_bytes;
    c->used = 0;
    c->next_event = answer.first_event;
    c->subscribed = true;
    if (c->bad->raw) {
        put(c, c->bad->raw, c->bad->raw_len);
        c->subscribed = false;
    }
}

static void stdin_ack(struct connection *c, uint32_t tag, struct sp_span session)
{
    uint8_t bytes[128];
    struct sp_pack p;
    struct sp_msg_stdin_ack ack = {
        .session_id = session,
        .accepted = c->peer->input->len,
        .window_end = c->peer->input->len + c->peer->stdin_window,
        .closed = c->peer->input_closed,
    };
    sp_pack_init(&p, bytes, sizeof(bytes));
    sp_msg_stdin_ack_encode(&p, &ack);
    put_frame(c, SP_FRAME_STDIN_ACK, tag, &p);
}

static void input(struct connection *c, const struct sp_frame_header *header,
                  const uint8_t *payload)
{
    struct sp_msg_stdin m = {0};
    GByteArray *all = c->peer->input;
    if (header->type == SP_FRAME_STDIN) {
        g_assert_true(sp_msg_stdin_decode(payload, header->payload_len, &m));
        g_assert_cmpuint(m.offset, <=, all->len); /* else bytes would be missing */
        uint64_t repeated = MIN(all->len - m.offset, m.data.len);
        uint64_t take = MIN(m.data.len - repeated, c->peer->stdin_window);
        g_byte_array_append(all, m.data.bytes + repeated, (guint)take);
    } else if (header->type == SP_FRAME_STDIN_CLOSE) {
        g_assert_true(sp_msg_stdin_close_decode(payload, header->payload_len, &m));
        g_assert_cmpuint(m.offset, ==, all->len);
        c->peer->input_closed = true;
    } else {
        g_assert_true(sp_msg_ref_decode(payload, header->payload_len, &m.session_id));
    }
    stdin_ack(c, header->tag, m.session_id);
}

static void frame(struct connection *c, const struct sp_frame_header *header,
                  const uint8_t *payload)
{
    struct sp_msg_credit credit;
    if (c->bad->no_answers && header->type != SP_FRAME_HELLO)
        return;
    switch (header->type) {
    case SP_FRAME_HELLO:
        hello(c, payload, header->payload_len);
        break;
    case SP_FRAME_PING:
        if (c->bad->wrong_reply)
            started(c, header->tag);
        else
            put_frame(c, SP_FRAME_PONG, header->tag, NULL);
        break;
    case SP_FRAME_START:
        g_mutex_lock(&c->peer->lock);
        c->peer->starts++;
        g_mutex_unlock(&c->peer->lock);
        started(c, header->tag);
        break;
    case SP_FRAME_SUBSCRIBE:
        subscribe(c, header->tag, payload, header->payload_len);
        break;
    case SP_FRAME_CREDIT:
        g_assert_true(sp_msg_credit_decode(payload, header->payload_len, &credit));
        c->credit = MAX(c->credit, credit.credit_bytes);
        g_mutex_lock(&c->peer->lock);
        c->peer->acked = MAX(c->peer->acked, credit.acked_event);
        g_mutex_unlock(&c->peer->lock);
        break;
    case SP_FRAME_STDIN:
    case SP_FRAME_STDIN_CLOSE:
    case SP_FRAME_STDIN_QUERY:
        input(c, header, payload);
        break;
    default:
        break;
    }
}

/* Reads until the link closes or the misdeed cuts. */
static void serve(struct connection *c)
{
    g_autofree uint8_t *in = g_malloc(1 << 18);
    size_t len = 0;
    while (!c->cut) {
        ssize_t n = recv(c->fd, in + len, (1 << 18) - len, 0);
        if (n <= 0)
            return;
        len += (size_t)n;
        size_t at = 0;
        while (len - at >= SP_FRAME_HEADER_BYTES) {
            struct sp_frame_header header;
            if (in[at] == 0) { /* filler */
                c->peer->zero_bytes++;
                at++;
                continue;
            }
            g_assert_true(sp_frame_header_decode(in + at, &header));
            if (len - at < SP_FRAME_HEADER_BYTES + header.payload_len)
                break;
            frame(c, &header, in + at + SP_FRAME_HEADER_BYTES);
            at += SP_FRAME_HEADER_BYTES + header.payload_len;
        }
        memmove(in, in + at, len - at);
        len -= at;
        pump(c);
    }
}

static void *peer_thread(void *data)
{
    struct connection *c = data;
    if (c->bad->garbage)
        put(c, c->bad->garbage, c->bad->garbage_len);
    serve(c);
    close(c->fd);
    g_free(c);
    return NULL;
}

void peer_init(struct peer *peer)
{
    memset(peer, 0, sizeof(*peer));
    g_mutex_init(&peer->lock);
    g_cond_init(&peer->changed);
    peer->input = g_byte_array_new();
    peer->n_events = 6;
    peer->event_bytes = 40;
    peer->stdin_window = 65536;
    peer->fd = -1;
}

int peer_connect(void *data, GError **error)
{
    struct peer *peer = data;
    int fds[2];
    if (peer->thread)
        g_thread_join(g_steal_pointer(&peer->thread));
    if (peer->refuse) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "nobody is there");
        return -1;
    }
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), ==, 0);
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    struct connection *c = g_new0(struct connection, 1);
    static const struct misdeed none;
    c->peer = peer;
    c->fd = fds[1];
    c->bad =
        peer->n_misdeeds ? &peer->misdeeds[MIN(peer->connections, peer->n_misdeeds - 1)] : &none;
    g_mutex_lock(&peer->lock);
    peer->connections++;
    g_mutex_unlock(&peer->lock);
    peer->thread = g_thread_new("peer", peer_thread, c);
    return fds[0];
}

void peer_clear(struct peer *peer)
{
    if (peer->thread)
        g_thread_join(g_steal_pointer(&peer->thread));
    g_byte_array_unref(peer->input);
    g_mutex_clear(&peer->lock);
    g_cond_clear(&peer->changed);
}
