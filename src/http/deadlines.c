/*
 * Deadlines of connections.
 *
 * libmicrohttpd restarts its timer with every byte, so a client that sends a head slowly holds a
 * thread for ever. Here each connection has an absolute deadline instead; one thread looks at all
 * of them in short steps and shuts down the sockets that are late, which wakes the connection's own
 * thread with an end of file. Connections set their deadline without a lock and without waking the
 * thread: the step bounds how late it is seen.
 */
#include "http/internal.h"

#include <sys/socket.h>

#include "base/time.h"

static void wait_ms(struct sp_http_deadlines *d, int64_t ms)
{
    g_cond_wait_until(&d->changed, &d->lock, g_get_monotonic_time() + ms * 1000);
}

static gpointer deadlines_run(gpointer data)
{
    struct sp_http_deadlines *d = data;
    g_mutex_lock(&d->lock);
    while (!d->quit) {
        if (g_queue_is_empty(&d->conns)) {
            g_cond_wait(&d->changed, &d->lock);
            continue;
        }
        const int64_t now = sp_time_monotonic_ms();
        for (GList *l = d->conns.head; l; l = l->next) {
            struct sp_http_conn *conn = l->data;
            if (atomic_load(&conn->deadline_ms) <= now) {
                shutdown(conn->fd, SHUT_RDWR);
                atomic_store(&conn->deadline_ms, INT64_MAX);
            }
        }
        wait_ms(d, d->tick_ms);
    }
    g_mutex_unlock(&d->lock);
    return NULL;
}

void sp_http_deadlines_start(struct sp_http_deadlines *d, int64_t tick_ms)
{
    g_mutex_init(&d->lock);
    g_cond_init(&d->changed);
    g_queue_init(&d->conns);
    d->quit = false;
    d->tick_ms = tick_ms;
    d->thread = g_thread_new("http-deadlines", deadlines_run, d);
}

void sp_http_deadlines_stop(struct sp_http_deadlines *d)
{
    g_mutex_lock(&d->lock);
    d->quit = true;
    g_cond_broadcast(&d->changed);
    g_mutex_unlock(&d->lock);
    g_thread_join(d->thread);
    g_cond_clear(&d->changed);
    g_mutex_clear(&d->lock);
}

struct sp_http_conn *sp_http_deadlines_add(struct sp_http_deadlines *d, int fd, int64_t deadline_ms)
{
    struct sp_http_conn *conn = g_new0(struct sp_http_conn, 1);
    conn->link.data = conn;
    conn->fd = fd;
    atomic_init(&conn->idle, true);
    atomic_init(&conn->deadline_ms, deadline_ms);
    g_mutex_lock(&d->lock);
    g_queue_push_tail_link(&d->conns, &conn->link);
    if (d->conns.length == 1)
        g_cond_broadcast(&d->changed);
    g_mutex_unlock(&d->lock);
    return conn;
}

void sp_http_deadlines_remove(struct sp_http_deadlines *d, struct sp_http_conn *conn)
{
    g_mutex_lock(&d->lock);
    g_queue_unlink(&d->conns, &conn->link);
    if (g_queue_is_empty(&d->conns))
        g_cond_broadcast(&d->changed);
    g_mutex_unlock(&d->lock);
    g_free(conn);
}

void sp_http_deadlines_shutdown(struct sp_http_deadlines *d, bool only_idle)
{
    g_mutex_lock(&d->lock);
    for (GList *l = d->conns.head; l; l = l->next) {
        struct sp_http_conn *conn = l->data;
        if (!only_idle || atomic_load(&conn->idle))
            shutdown(conn->fd, SHUT_RDWR);
    }
    g_mutex_unlock(&d->lock);
}

bool sp_http_deadlines_wait_empty(struct sp_http_deadlines *d, int64_t deadline_ms)
{
    g_mutex_lock(&d->lock);
    while (!g_queue_is_empty(&d->conns)) {
        const int64_t left_ms = deadline_ms - sp_time_monotonic_ms();
        if (left_ms <= 0)
            break;
        wait_ms(d, left_ms);
    }
    const bool empty = g_queue_is_empty(&d->conns);
    g_mutex_unlock(&d->lock);
    return empty;
}
