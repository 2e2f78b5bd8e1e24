#include "link.h"

#include "hold.h"
#include "request.h"
#include "subscription.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* An answer is at most one frame, and one unasked STDIN_ACK may come with it. */
#define ANSWER_RESERVE (AGENT_FRAME_MAX + 256u)

void link_init(struct link *l)
{
    l->fd = -1;
    l->max_event_data = SP_MSG_EVENT_DATA_MIN;
}

/* Forgets everything that belongs to a connection. Sessions stay. */
static void forget_connection(struct agent *a)
{
    struct link *l = &a->link;
    subscription_drop_all(a);
    l->greeted = l->quiet = l->desynced = false;
    l->version = 0;
    l->in_len = 0;
    l->out_head = l->out_sent = l->out_len = 0;
}

static void close_link(struct agent *a)
{
    forget_connection(a);
    if (a->link.fd >= 0)
        close(a->link.fd); /* also leaves the epoll set */
    a->link.fd = -1;
    a->link.connected = a->link.readable = a->link.writable = false;
}

void link_accept(struct agent *a)
{
    int fd = accept4(a->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno == EINVAL) /* nobody can ever reach us: better to end than to be asked for ever */
            agent_fatal(a, "the link socket does not listen");
        return;
    }
    close_link(a);
    a->link.fd = fd;
    a->link.connected = true;
    if (!agent_watch(a, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, WATCH_LINK, 0,
                     0))
        close_link(a);
}

void link_use_port(struct agent *a, int fd)
{
    a->link.fd = fd;
    if (!agent_watch(a, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLET, WATCH_LINK, 0, 0))
        agent_fatal(a, "cannot watch the agent port");
}

void link_ready(struct agent *a, uint32_t events)
{
    struct link *l = &a->link;
    if (l->fd < 0)
        return;
    if (a->is_vm && (events & EPOLLHUP)) { /* the host has closed the port; we keep our end */
        l->connected = l->readable = l->writable = false;
        forget_connection(a);
        return;
    }
    l->connected = true;
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        l->readable = true;
    if (events & EPOLLOUT)
        l->writable = true;
}

bool link_has_room(const struct link *l, size_t payload_len)
{
    size_t used = l->out_len - l->out_head;
    return used + SP_FRAME_HEADER_BYTES + payload_len + ANSWER_RESERVE <= sizeof l->out;
}

static bool can_answer(const struct link *l)
{
    return l->out_len - l->out_head + ANSWER_RESERVE <= sizeof l->out;
}

struct sp_pack link_begin(struct link *l)
{
    struct sp_pack p;
    if (l->out_len + ANSWER_RESERVE > sizeof l->out && l->out_head > 0) {
        memmove(l->out, l->out + l->out_head, l->out_len - l->out_head);
        l->out_len -= l->out_head;
        l->out_sent -= l->out_head;
        l->out_head = 0;
    }
    size_t at = l->out_len + SP_FRAME_HEADER_BYTES;
    size_t space = at < sizeof l->out ? sizeof l->out - at : 0;
    sp_pack_init(&p, l->out + at, space < SP_FRAME_MAX_PAYLOAD ? space : SP_FRAME_MAX_PAYLOAD);
    return p;
}

void link_commit(struct link *l, uint8_t type, uint32_t tag, const struct sp_pack *payload)
{
    if (payload->overflow)
        return; /* cannot happen for our own messages: each fits into a frame by its limits */
    struct sp_frame_header header = {type, (uint32_t)payload->len, tag};
    sp_frame_header_encode(&header, l->out + l->out_len);
    l->out_len += SP_FRAME_HEADER_BYTES + payload->len;
}

void link_reply_ok(struct link *l, uint32_t tag)
{
    struct sp_pack p = link_begin(l);
    link_commit(l, SP_FRAME_OK, tag, &p);
}

void link_reply_error(struct link *l, uint32_t tag, const char *code, const char *message)
{
    struct sp_pack p = link_begin(l);
    sp_msg_error_encode(&p, &(struct sp_msg_error){sp_span_of(code), sp_span_of(message)});
    link_commit(l, SP_FRAME_ERROR, tag, &p);
}

/* A HELLO begins afresh: what was queued is dropped, except the rest of a frame that is half sent
 * already, so that the host can go on parsing. */
static void drop_queued(struct link *l)
{
    size_t end = l->out_head;
    while (end < l->out_sent) {
        struct sp_frame_header header;
        if (!sp_frame_header_decode(l->out + end, &header))
            break;
        end += SP_FRAME_HEADER_BYTES + header.payload_len;
    }
    l->out_len = end;
}

static void handle_hello(struct agent *a, uint32_t tag, const uint8_t *payload, size_t len)
{
    struct link *l = &a->link;
    struct sp_msg_hello hello;
    if (!sp_msg_hello_decode(payload, len, &hello)) {
        if (l->greeted)
            link_reply_error(l, tag, "invalid", "HELLO");
        return;
    }
    subscription_drop_all(a);
    drop_queued(l);
    l->greeted = true;
    l->quiet = false;
    l->max_event_data = hello.max_event_data;
    l->version = hello.version_min <= SP_AGENT_VERSION && SP_AGENT_VERSION <= hello.version_max
                     ? SP_AGENT_VERSION
                     : 0;
    struct sp_msg_hello_ok ok = {
        .version = l->version,
        .identified = a->identified && !a->held,
        .features = (a->cgroup_fd >= 0 ? SP_AGENT_FEATURE_SESSION_CGROUPS : 0u) |
                    (a->oom_fd >= 0 || a->has_memory_controller ? SP_AGENT_FEATURE_OOM : 0u) |
                    (hold_can_freeze(a) ? SP_AGENT_FEATURE_HOLD : 0u),
        .build = sp_span_of(AGENT_BUILD),
    };
    memcpy(ok.nonce, hello.nonce, sizeof ok.nonce);
    memcpy(ok.instance, a->instance, sizeof ok.instance);
    struct sp_pack p = link_begin(l);
    sp_msg_hello_ok_encode(&p, &ok);
    link_commit(l, SP_FRAME_HELLO_OK, tag, &p);
}

/* Parses what has arrived; stops when the queue could not hold another answer. */
static void parse_input(struct agent *a)
{
    struct link *l = &a->link;
    size_t at = 0;
    while (at < l->in_len && can_answer(l)) {
        if (l->desynced) {
            at += sp_frame_find_resync(l->in + at, l->in_len - at, SP_FRAME_HELLO);
            if (l->in_len - at < SP_FRAME_HEADER_BYTES)
                break;
            l->desynced = false;
        }
        struct sp_frame_header header;
        if (l->in_len - at < SP_FRAME_HEADER_BYTES)
            break;
        if (!sp_frame_header_decode(l->in + at, &header)) {
            l->desynced = true;
            at++; /* this is no HELLO header, and the search begins behind its first byte */
            continue;
        }
        size_t whole = SP_FRAME_HEADER_BYTES + header.payload_len;
        if (l->in_len - at < whole)
            break;
        const uint8_t *payload = l->in + at + SP_FRAME_HEADER_BYTES;
        if (header.type == SP_FRAME_HELLO)
            handle_hello(a, header.tag, payload, header.payload_len);
        else if (l->greeted && !l->quiet && l->version)
            request_handle(a, &header, payload);
        at += whole;
    }
    if (at > 0) {
        memmove(l->in, l->in + at, l->in_len - at);
        l->in_len -= at;
    }
}

/* Whether the input holds something that parse_input could use once there is room for answers. */
static bool input_waits(const struct link *l)
{
    struct sp_frame_header header;
    if (l->desynced || l->in_len < SP_FRAME_HEADER_BYTES)
        return false;
    return !sp_frame_header_decode(l->in, &header) ||
           l->in_len >= SP_FRAME_HEADER_BYTES + header.payload_len;
}

/* true: something was read. */
static bool read_input(struct agent *a)
{
    struct link *l = &a->link;
    size_t space = sizeof l->in - l->in_len;
    if (space == 0)
        return false;
    ssize_t n = read(l->fd, l->in + l->in_len, space);
    if (n > 0) {
        l->in_len += (size_t)n;
        if (!a->is_vm && (size_t)n < space)
            l->readable = false; /* drained: a new arrival is a new edge */
        return true;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        l->readable = errno == EINTR;
    } else if (a->is_vm) { /* 0: the host is not connected */
        l->readable = l->writable = l->connected = false;
        forget_connection(a);
    } else {
        close_link(a);
    }
    return false;
}

/* true: something was written. */
static bool write_output(struct agent *a)
{
    struct link *l = &a->link;
    ssize_t n = a->is_vm ? write(l->fd, l->out + l->out_sent, l->out_len - l->out_sent)
                         : send(l->fd, l->out + l->out_sent, l->out_len - l->out_sent, MSG_NOSIGNAL);
    if (n <= 0) {
        if (n < 0 && errno != EAGAIN && errno != EINTR && !a->is_vm)
            close_link(a);
        l->writable = n < 0 && errno == EINTR;
        return false;
    }
    l->out_sent += (size_t)n;
    struct sp_frame_header header;
    while (l->out_head < l->out_sent && sp_frame_header_decode(l->out + l->out_head, &header)) {
        size_t next = l->out_head + SP_FRAME_HEADER_BYTES + header.payload_len;
        if (next > l->out_sent)
            break;
        l->out_head = next;
    }
    if (l->out_sent == l->out_len)
        l->out_head = l->out_sent = l->out_len = 0; /* the same few pages again */
    return true;
}

void link_service(struct agent *a)
{
    struct link *l = &a->link;
    a->work_left = false;
    for (unsigned turn = 0; l->fd >= 0; turn++) {
        bool moved = false;
        if (turn == 64) { /* let the sessions have their turn */
            a->work_left = true;
            return;
        }
        if (l->readable && can_answer(l) && read_input(a))
            moved = true;
        if (l->fd < 0)
            return;
        if (l->in_len > 0) {
            parse_input(a);
            if (input_waits(l) && can_answer(l))
                moved = true;
        }
        if (l->greeted && !l->quiet)
            subscription_pump(a);
        if (l->writable && l->out_sent < l->out_len && write_output(a))
            moved = true;
        if (!moved)
            return;
    }
}
