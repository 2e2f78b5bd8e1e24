#include "input.h"

#include "link.h"
#include "session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define TERMINAL_EOF 4 /* ^D, the default VEOF */

static uint64_t window_end(const struct input *in)
{
    if (in->fd < 0 || in->close_asked)
        return in->accepted;
    return in->accepted + INPUT_WINDOW_BYTES - in->len;
}

static void send_ack(struct agent *a, uint32_t tag, struct session *s)
{
    struct input *in = &s->input;
    struct sp_msg_stdin_ack ack = {.session_id = sp_span_of(s->id),
                                   .accepted = in->accepted,
                                   .window_end = window_end(in),
                                   .closed = in->fd < 0 || in->close_asked};
    in->shut = !ack.closed && ack.window_end == ack.accepted;
    struct sp_pack p = link_begin(&a->link);
    sp_msg_stdin_ack_encode(&p, &ack);
    link_commit(&a->link, SP_FRAME_STDIN_ACK, tag, &p);
}

/* The host waits for a window: tells it that there is one again, or that there never will be. */
static void end_wait(struct agent *a, struct session *s)
{
    if (s->input.shut && !s->forgotten && a->link.greeted && !a->link.quiet &&
        link_has_room(&a->link, 256))
        send_ack(a, 0, s);
}

void input_end(struct agent *a, struct session *s)
{
    struct input *in = &s->input;
    free(in->buffer);
    in->buffer = NULL;
    in->from = in->len = 0;
    if (in->fd < 0)
        return;
    if (in->watched) /* a terminal stays open under another descriptor: close would not unwatch */
        agent_watch(a, EPOLL_CTL_DEL, in->fd, 0, WATCH_STDIN, s->slot, s->generation);
    in->watched = false;
    close(in->fd);
    in->fd = -1;
    in->child_closed = !in->close_asked;
    end_wait(a, s);
}

static void set_watched(struct agent *a, struct session *s, bool wanted)
{
    struct input *in = &s->input;
    if (in->fd < 0 || in->watched == wanted)
        return;
    if (agent_watch(a, wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, in->fd, EPOLLOUT, WATCH_STDIN,
                    s->slot, s->generation))
        in->watched = wanted;
}

/* Writes as much as the pipe takes. -1: the reader is gone. */
static ssize_t write_some(struct input *in, const uint8_t *bytes, size_t len)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = write(in->fd, bytes + done, len - done);
        if (n > 0) {
            done += (size_t)n;
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else if (n < 0 && errno != EAGAIN) {
            return -1;
        } else {
            break;
        }
    }
    return (ssize_t)done;
}

static void finish_close(struct agent *a, struct session *s)
{
    struct input *in = &s->input;
    if (in->is_terminal) {
        static const uint8_t eof = TERMINAL_EOF;
        (void)write_some(in, &eof, 1);
    }
    input_end(a, s);
}

void input_ready(struct agent *a, struct session *s)
{
    struct input *in = &s->input;
    if (in->fd < 0)
        return;
    ssize_t n = write_some(in, in->buffer ? in->buffer + in->from : NULL, in->len);
    if (n < 0) {
        input_end(a, s);
        return;
    }
    in->from += (size_t)n;
    in->len -= (size_t)n;
    if (in->len > 0) {
        set_watched(a, s, true);
        return;
    }
    free(in->buffer);
    in->buffer = NULL;
    in->from = 0;
    set_watched(a, s, false);
    if (in->close_asked)
        finish_close(a, s);
    else
        end_wait(a, s);
}

/* Takes new bytes: into the pipe while nothing waits before them, else into the buffer. */
static void take(struct agent *a, struct session *s, const uint8_t *bytes, size_t len)
{
    struct input *in = &s->input;
    size_t written = 0;
    if (in->len == 0) {
        ssize_t n = write_some(in, bytes, len);
        if (n < 0) {
            input_end(a, s);
            return;
        }
        written = (size_t)n;
    }
    in->accepted += written;
    size_t rest = len - written;
    if (rest == 0)
        return;
    if (!in->buffer && !(in->buffer = malloc(INPUT_WINDOW_BYTES)))
        return; /* not accepted: the host sends it again */
    if (in->from > 0) {
        memmove(in->buffer, in->buffer + in->from, in->len);
        in->from = 0;
    }
    size_t space = INPUT_WINDOW_BYTES - in->len;
    if (rest > space)
        rest = space;
    memcpy(in->buffer + in->len, bytes + written, rest);
    in->len += rest;
    in->accepted += rest;
    set_watched(a, s, true);
}

void input_data(struct agent *a, uint32_t tag, struct session *s, const struct sp_msg_stdin *m)
{
    struct input *in = &s->input;
    if (m->offset > in->accepted) {
        link_reply_error(&a->link, tag, "invalid", "offset is above what was accepted");
        return;
    }
    uint64_t known = in->accepted - m->offset;
    if (known < m->data.len) { /* something new */
        if (in->fd < 0 || in->close_asked) {
            bool over = !s->leader_alive && !in->none && !in->close_asked;
            link_reply_error(&a->link, tag, over ? "process_exited" : "stdin_closed",
                             over ? "the command has ended" : "the input is closed");
            return;
        }
        take(a, s, m->data.bytes + known, m->data.len - (size_t)known);
    }
    send_ack(a, tag, s);
}

void input_close(struct agent *a, uint32_t tag, struct session *s, uint64_t offset)
{
    struct input *in = &s->input;
    if (in->none || in->close_asked) { /* a repeat */
        send_ack(a, tag, s);
        return;
    }
    if (in->fd < 0) {
        bool over = !s->leader_alive;
        link_reply_error(&a->link, tag, over ? "process_exited" : "stdin_closed",
                         over ? "the command has ended" : "the command has closed its input");
        return;
    }
    if (offset != in->accepted) {
        link_reply_error(&a->link, tag, "invalid", "not everything before offset was accepted");
        return;
    }
    in->close_asked = true;
    if (in->len == 0)
        finish_close(a, s);
    send_ack(a, tag, s);
}

void input_query(struct agent *a, uint32_t tag, struct session *s)
{
    send_ack(a, tag, s);
}
