#include "output.h"

#include "session.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define READS_PER_TURN 8
#define PAUSE_BELOW 512u /* bytes of room: less is not worth an event */
#define RESUME_AT_MOST 65536u
#define DROPPED_EVENTS_ROOM 64u /* two EVENT 4 with their heads */

static enum watch_kind watch_of(unsigned stream)
{
    return stream == 0 ? WATCH_STDOUT : WATCH_STDERR;
}

static uint8_t event_of(unsigned stream)
{
    return stream == 0 ? SP_EVENT_STDOUT : SP_EVENT_STDERR;
}

bool output_watch(struct agent *a, struct session *s)
{
    for (unsigned i = 0; i < 2; i++) {
        if (s->out_fd[i] >= 0 && !agent_watch(a, EPOLL_CTL_ADD, s->out_fd[i], EPOLLIN, watch_of(i),
                                              s->slot, s->generation))
            return false;
    }
    return true;
}

static void close_stream(struct session *s, unsigned stream)
{
    if (s->out_fd[stream] >= 0)
        close(s->out_fd[stream]);
    s->out_fd[stream] = -1;
    s->out_paused[stream] = false;
}

void output_close(struct session *s)
{
    close_stream(s, 0);
    close_stream(s, 1);
}

bool output_is_open(const struct session *s)
{
    return s->out_fd[0] >= 0 || s->out_fd[1] >= 0;
}

void output_flush_dropped(struct session *s)
{
    for (unsigned i = 0; i < 2; i++) {
        if (s->dropped_bytes[i] == 0)
            continue;
        uint8_t body[9];
        struct sp_pack p;
        sp_pack_init(&p, body, sizeof body);
        sp_pack_u8(&p, event_of(i));
        sp_pack_u64(&p, s->dropped_bytes[i]);
        if (ring_append(&s->ring, SP_EVENT_DROPPED, body, p.len, true))
            s->dropped_bytes[i] = 0;
    }
}

static void record(struct agent *a, struct session *s, unsigned stream, size_t len)
{
    bool behind = s->dropped_bytes[0] > 0 || s->dropped_bytes[1] > 0;
    if (s->overflow == SP_OVERFLOW_DROP &&
        ring_room(&s->ring) < len + (behind ? DROPPED_EVENTS_ROOM : 0)) {
        s->dropped_bytes[stream] += len;
        return;
    }
    if (behind)
        output_flush_dropped(s);
    if (!ring_append(&s->ring, event_of(stream), a->scratch, len, false))
        s->dropped_bytes[stream] += len; /* no memory: at least say so */
}

static void pause_stream(struct agent *a, struct session *s, unsigned stream)
{
    if (s->out_paused[stream])
        return;
    /* Not "no events": the end of file would still be reported, again and again. */
    agent_watch(a, EPOLL_CTL_DEL, s->out_fd[stream], 0, watch_of(stream), s->slot, s->generation);
    s->out_paused[stream] = true;
}

/* When the memory of all rings is nearly used up, what was delivered already has to go. */
static void relieve_pool(struct agent *a)
{
    for (uint32_t i = 0; i < a->session_high; i++) {
        if (a->sessions[i])
            ring_trim(&a->sessions[i]->ring);
    }
}

/* Nothing more is taken from a pipe that somebody holds open. true: nobody does, it can be read to
 * its end. */
static bool cut_stream(struct session *s, unsigned stream)
{
    struct pollfd p = {.fd = s->out_fd[stream], .events = POLLIN};
    if (poll(&p, 1, 0) > 0 && (p.revents & POLLHUP)) {
        s->cut_left[stream] = SIZE_MAX;
        return true;
    }
    s->exit.flags |= SP_EXIT_PIPE_HELD_OPEN;
    close_stream(s, stream);
    return false;
}

/* How much may be read now; 0: nothing (the stream is paused or closed then). */
static size_t allowance(struct agent *a, struct session *s, unsigned stream)
{
    size_t want = a->link.max_event_data;
    if (s->cutting) {
        if (s->cut_left[stream] == 0 && !cut_stream(s, stream))
            return 0;
        if (want > s->cut_left[stream])
            want = s->cut_left[stream];
    }
    if (s->ring.allocated < s->ring.capacity && a->pool.used + s->ring.capacity > a->pool.max)
        relieve_pool(a);
    if (s->overflow == SP_OVERFLOW_DROP)
        return want;
    size_t room = ring_room(&s->ring);
    if (room < PAUSE_BELOW && room < want) {
        pause_stream(a, s, stream);
        return 0;
    }
    return want < room ? want : room;
}

void output_read(struct agent *a, struct session *s, unsigned stream)
{
    for (int turn = 0; turn < READS_PER_TURN && s->out_fd[stream] >= 0; turn++) {
        size_t want = allowance(a, s, stream);
        if (want == 0)
            return;
        ssize_t n = read(s->out_fd[stream], a->scratch, want);
        if (n > 0) {
            record(a, s, stream, (size_t)n);
            if (s->cutting)
                s->cut_left[stream] -= (size_t)n;
            continue;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            if (s->cutting) /* somebody else has read it */
                (void)cut_stream(s, stream);
            return;
        }
        close_stream(s, stream); /* end of file; EIO is the end of a terminal */
    }
}

void output_resume(struct agent *a, struct session *s)
{
    size_t wanted = s->ring.capacity / 4 < RESUME_AT_MOST ? s->ring.capacity / 4 : RESUME_AT_MOST;
    bool all_acked = s->ring.acked + 1 >= s->ring.next_id;
    for (unsigned i = 0; i < 2; i++) {
        if (!s->out_paused[i] || (!all_acked && ring_room(&s->ring) < wanted))
            continue;
        if (agent_watch(a, EPOLL_CTL_ADD, s->out_fd[i], EPOLLIN, watch_of(i), s->slot,
                        s->generation))
            s->out_paused[i] = false;
    }
}

void output_cut(struct agent *a, struct session *s)
{
    for (unsigned i = 0; i < 2; i++) {
        int waiting = 0;
        if (s->out_fd[i] >= 0 && !s->cutting)
            s->cut_left[i] = ioctl(s->out_fd[i], FIONREAD, &waiting) == 0 ? (size_t)waiting : 0;
    }
    s->cutting = true;
    for (unsigned i = 0; i < 2; i++) {
        while (s->out_fd[i] >= 0 && !s->out_paused[i])
            output_read(a, s, i);
    }
}
