/* The thread of a link: connecting, reading, timers, the end of the sandbox. */
#include "node/link.h"
#include "node/link_private.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"

#define HANG_UP_MS 2000

static int64_t ms_since(int64_t now_us, int64_t then_us)
{
    return (now_us - then_us) / 1000;
}

static void note_error(struct sp_link *link, const GError *error)
{
    g_strlcpy(link->error, error->message, sizeof(link->error));
}

/* Takes the connection down; the lock is held. A breach of the protocol is punished with a longer
 * pause than a cut. */
static void disconnect(struct sp_link *link, const GError *why, bool violation)
{
    int64_t now = sp_time_monotonic_us();
    bool was_ready = link->state == SP_LINK_READY;
    /* Ten good seconds pay for what was before. */
    if (was_ready && !violation && ms_since(now, link->connected_us) > 10000)
        link->backoff_ms = 0;
    if (violation) {
        link->violations++;
        link->backoff_ms = MAX(link->backoff_ms, LINK_VIOLATION_MIN_MS / 2);
    }
    link->backoff_ms = CLAMP(link->backoff_ms * 2, LINK_BACKOFF_MIN_MS, LINK_BACKOFF_MAX_MS);
    note_error(link, why);
    sp_link_drop_connection(link);
}

/* One look at the descriptors; false when the sandbox has ended. */
static bool wait_for_something(struct sp_link *link, int timeout_ms, bool *ret_readable)
{
    g_mutex_lock(&link->lock);
    short events = POLLIN | (link->out_len > link->out_at ? POLLOUT : 0);
    g_mutex_unlock(&link->lock);
    struct pollfd fds[3] = {
        {.fd = link->wake_fd, .events = POLLIN},
        {.fd = link->spec.pidfd, .events = POLLIN},
        {.fd = link->fd, .events = events},
    };
    *ret_readable = false;
    if (poll(fds, 3, timeout_ms) < 0)
        return true; /* EINTR; the caller looks again */
    if (fds[0].revents) {
        uint64_t count;
        ssize_t n = read(link->wake_fd, &count, sizeof(count));
        (void)n;
    }
    if (link->fd >= 0 && (fds[2].revents & POLLOUT)) {
        g_mutex_lock(&link->lock);
        sp_link_flush(link);
        g_mutex_unlock(&link->lock);
    }
    *ret_readable = (fds[2].revents & (POLLIN | POLLHUP | POLLERR)) != 0;
    return !fds[1].revents;
}

static void read_and_parse(struct sp_link *link)
{
    g_autoptr(GError) error = NULL;
    g_mutex_lock(&link->lock);
    if (!sp_link_fill(link, &error))
        disconnect(link, error, false);
    else if (!sp_link_parse(link, &error))
        disconnect(link, error, true);
    g_mutex_unlock(&link->lock);
}

/* The process has ended: what it has still said counts, up to the end of file. */
static void drain(struct sp_link *link)
{
    while (link->fd >= 0) {
        struct pollfd fd = {.fd = link->fd, .events = POLLIN};
        if (poll(&fd, 1, 0) <= 0)
            break;
        read_and_parse(link);
    }
}

/* A ping when there was silence; false (error set) when the last one was not answered. Lock held.
 */
static bool check_silence(struct sp_link *link, int64_t now, GError **error)
{
    if (link->ping_sent_us) {
        if (ms_since(now, MAX(link->ping_sent_us, link->last_rx_us)) < LINK_PONG_LIMIT_MS)
            return true;
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the agent is silent");
        return false;
    }
    bool busy = g_hash_table_size(link->requests) + g_hash_table_size(link->subs) > 0;
    if (ms_since(now, link->last_rx_us) >= (busy ? LINK_PING_BUSY_MS : LINK_PING_IDLE_MS)) {
        link->ping_sent_us = now;
        sp_link_put(link, SP_FRAME_PING, sp_link_new_tag(link), NULL, 0);
        sp_link_flush(link);
    }
    return true;
}

/* What time alone brings about; how long the next poll may wait. */
static int run_timers(struct sp_link *link)
{
    g_autoptr(GError) error = NULL;
    int64_t now = sp_time_monotonic_us();
    int timeout = 1000;
    g_mutex_lock(&link->lock);
    if (link->paused) {
        /* It stands still: what it owes is due when it goes on. */
    } else if (link->send_failed) {
        g_set_error(&error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the agent does not take its input");
    } else if (link->state == SP_LINK_READY) {
        check_silence(link, now, &error);
    } else if (ms_since(now, link->connected_us) > LINK_HELLO_LIMIT_MS) {
        g_set_error(&error, SP_ERROR, SP_ERROR_UNAVAILABLE, "HELLO was not answered");
    } else {
        if (ms_since(now, link->hello_sent_us) >= link->hello_wait_ms) {
            link->hello_wait_ms *= 2;
            sp_link_send_hello(link, true);
        }
        timeout = (int)CLAMP(link->hello_wait_ms - ms_since(now, link->hello_sent_us), 1, 1000);
    }
    if (error)
        disconnect(link, error, false);
    g_mutex_unlock(&link->lock);
    return timeout;
}

/* Connects, and says HELLO. */
static void connect_once(struct sp_link *link)
{
    g_autoptr(GError) error = NULL;
    int fd = link->spec.connect(link->spec.connect_user, &error);
    int64_t now = sp_time_monotonic_us();
    g_mutex_lock(&link->lock);
    if (fd < 0) {
        disconnect(link, error, false);
    } else if (link->paused) { /* meanwhile: see sp_link_hang_up() */
        close(fd);
    } else {
        link->fd = fd;
        link->connected_us = link->last_rx_us = now;
        link->hello_wait_ms = LINK_HELLO_FIRST_MS;
        sp_link_send_hello(link, false);
    }
    g_mutex_unlock(&link->lock);
}

static bool is_stopping(struct sp_link *link)
{
    g_mutex_lock(&link->lock);
    bool stopping = link->stopping;
    g_mutex_unlock(&link->lock);
    return stopping;
}

static bool is_paused(struct sp_link *link)
{
    g_mutex_lock(&link->lock);
    bool paused = link->paused;
    g_mutex_unlock(&link->lock);
    return paused;
}

/* Whether the connection was closed because somebody waits for that. */
static bool hung_up(struct sp_link *link)
{
    g_mutex_lock(&link->lock);
    bool wanted = link->hang_up;
    link->hang_up = false;
    if (wanted)
        sp_link_drop_connection(link);
    g_mutex_unlock(&link->lock);
    return wanted;
}

static void finish(struct sp_link *link, enum sp_link_state state, const char *reason)
{
    g_mutex_lock(&link->lock);
    sp_link_drop_connection(link);
    link->state = state;
    sp_link_end_all(link, reason);
    g_cond_broadcast(&link->changed);
    g_mutex_unlock(&link->lock);
}

static void *link_thread(void *data)
{
    struct sp_link *link = data;
    bool alive = true, readable;
    while (alive && !is_stopping(link)) {
        if (link->fd < 0) {
            bool paused = is_paused(link);
            if (paused || link->backoff_ms > 0)
                alive = wait_for_something(link, paused ? 1000 : link->backoff_ms, &readable);
            if (alive && !is_stopping(link) && !is_paused(link))
                connect_once(link);
            continue;
        }
        if (hung_up(link))
            continue;
        alive = wait_for_something(link, run_timers(link), &readable);
        if (readable && link->fd >= 0)
            read_and_parse(link);
    }
    if (alive) {
        finish(link, SP_LINK_STOPPED, link->stop_reason);
        return NULL;
    }
    drain(link);
    finish(link, SP_LINK_GONE, "the sandbox has ended"); /* from here on nobody rehomes it */
    if (link->spec.on_gone)
        link->spec.on_gone(link->spec.gone_user);
    return NULL;
}

static void *link_thread_ref(void *data)
{
    struct sp_link *link = data;
    link_thread(link);
    sp_link_unref(link);
    return NULL;
}

struct sp_link *sp_link_start(const struct sp_link_spec *spec, GError **error)
{
    int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int pidfd = spec->pidfd >= 0 ? fcntl(spec->pidfd, F_DUPFD_CLOEXEC, 3) : -1;
    if (wake_fd < 0 || (spec->pidfd >= 0 && pidfd < 0)) {
        sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "descriptors of a link");
        if (wake_fd >= 0)
            close(wake_fd);
        return NULL;
    }
    struct sp_link *link = g_new0(struct sp_link, 1);
    link->refs = 2; /* the caller's and the thread's */
    link->spec = *spec;
    link->sandbox_id = g_strdup(spec->sandbox_id);
    link->spec.sandbox_id = link->sandbox_id;
    link->spec.pidfd = pidfd;
    link->wake_fd = wake_fd;
    link->fd = -1;
    link->down_since_us = sp_time_monotonic_us();
    link->in = g_malloc(LINK_IN_BYTES);
    link->requests = g_hash_table_new(NULL, NULL);
    link->subs = g_hash_table_new(NULL, NULL);
    link->inputs = g_hash_table_new(g_str_hash, g_str_equal);
    g_mutex_init(&link->lock);
    g_cond_init(&link->changed);
    link->thread = g_thread_try_new("link", link_thread_ref, link, error);
    if (!link->thread) {
        link->refs = 1;
        sp_link_unref(link);
        return NULL;
    }
    return link;
}

static void wake_thread(struct sp_link *link)
{
    uint64_t one = 1;
    ssize_t n = write(link->wake_fd, &one, sizeof(one));
    (void)n; /* EAGAIN: it is to wake up already */
}

static void stop(struct sp_link *link, const char *reason, bool suspended)
{
    g_mutex_lock(&link->lock);
    GThread *thread = g_steal_pointer(&link->thread);
    if (!link->stopping) {
        link->stopping = true;
        link->suspended = suspended;
        link->stop_reason = g_strdup(reason);
    }
    g_mutex_unlock(&link->lock);
    wake_thread(link);
    if (thread)
        g_thread_join(thread);
}

void sp_link_stop(struct sp_link *link, const char *reason)
{
    stop(link, reason, false);
}

void sp_link_suspend(struct sp_link *link)
{
    stop(link, "the sandbox was suspended", true);
}

void sp_link_pause(struct sp_link *link, bool paused)
{
    g_mutex_lock(&link->lock);
    if (!paused && link->paused) { /* all deadlines of the connection begin anew */
        link->last_rx_us = link->connected_us = link->hello_sent_us = link->down_since_us =
            sp_time_monotonic_us();
        link->ping_sent_us = 0;
    }
    link->paused = paused;
    g_mutex_unlock(&link->lock);
    wake_thread(link);
}

bool sp_link_hang_up(struct sp_link *link, GError **error)
{
    int64_t until = sp_time_monotonic_us() + HANG_UP_MS * 1000;
    g_mutex_lock(&link->lock);
    while (link->fd >= 0 && link->paused && sp_time_monotonic_us() < until) {
        link->hang_up = true;
        wake_thread(link);
        g_cond_wait_until(&link->changed, &link->lock, until);
    }
    link->hang_up = false;
    bool closed = link->fd < 0;
    g_mutex_unlock(&link->lock);
    if (!closed)
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the connection to the agent stays");
    return closed;
}

bool sp_link_rehome(struct sp_link *link, const char *sandbox_id, void (*on_gone)(void *),
                    void *gone_user)
{
    g_mutex_lock(&link->lock);
    bool alive = !link->stopping && link->state != SP_LINK_GONE && link->state != SP_LINK_STOPPED;
    if (alive) {
        g_free(link->sandbox_id);
        link->sandbox_id = g_strdup(sandbox_id);
        link->spec.sandbox_id = link->sandbox_id;
        link->spec.on_gone = on_gone;
        link->spec.gone_user = gone_user;
    }
    g_mutex_unlock(&link->lock);
    return alive;
}

struct sp_link *sp_link_ref(struct sp_link *link)
{
    g_atomic_int_inc(&link->refs);
    return link;
}

void sp_link_unref(struct sp_link *link)
{
    if (!link || !g_atomic_int_dec_and_test(&link->refs))
        return;
    if (link->thread)
        g_thread_unref(link->thread);
    close(link->wake_fd);
    if (link->spec.pidfd >= 0)
        close(link->spec.pidfd);
    g_hash_table_destroy(link->requests);
    g_hash_table_destroy(link->subs);
    g_hash_table_destroy(link->inputs);
    g_mutex_clear(&link->lock);
    g_cond_clear(&link->changed);
    g_free(link->in);
    g_free(link->out);
    g_free(link->sandbox_id);
    g_free(link->stop_reason);
    g_free(link);
}

void sp_link_info(struct sp_link *link, struct sp_link_info *ret)
{
    g_mutex_lock(&link->lock);
    *ret = (struct sp_link_info){
        .state = link->state,
        .identified = link->identified,
        .features = link->features,
        .connects = link->connects,
        .violations = link->violations,
    };
    if (link->state != SP_LINK_READY)
        ret->down_ms = ms_since(sp_time_monotonic_us(), link->down_since_us);
    memcpy(ret->error, link->error, sizeof(ret->error));
    g_mutex_unlock(&link->lock);
}

bool sp_link_wait_ready(struct sp_link *link, int64_t deadline_us, GError **error)
{
    bool fine = true;
    g_mutex_lock(&link->lock);
    while (fine && link->state != SP_LINK_READY) {
        if (link->state != SP_LINK_CONNECTING) {
            sp_link_set_ended(link, error);
            fine = false;
        } else if (!g_cond_wait_until(&link->changed, &link->lock, deadline_us)) {
            g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE,
                        "the agent did not answer in time%s%s", link->error[0] ? ": " : "",
                        link->error);
            fine = false;
        }
    }
    g_mutex_unlock(&link->lock);
    return fine;
}
