#include "store/postgres/notify.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "store/postgres/conn.h"

#define CHANNEL "space_changes"
/* Topics are joined by line feeds; "*" stands for all. A payload is below 8000 bytes (PostgreSQL
 * manual, NOTIFY). */
#define PAYLOAD_MAX_BYTES 7000
#define QUEUE_MAX 1000
#define RETRY_FIRST_MS 200
#define RETRY_MOST_MS 2000

struct sp_pg_notifier {
    char *url;
    sp_db_heard heard;
    void *user;
    GThread *thread;
    int event_fd;
    GMutex lock;       /* a leaf: queue, all, stopping */
    GHashTable *queue; /* set of topics; owned */
    bool all;          /* more than QUEUE_MAX */
    bool stopping;
};

static void wake(struct sp_pg_notifier *n)
{
    uint64_t one = 1;
    ssize_t done;
    do
        done = write(n->event_fd, &one, sizeof one);
    while (done < 0 && errno == EINTR);
}

void sp_pg_notifier_send(struct sp_pg_notifier *n, const char *topic)
{
    g_mutex_lock(&n->lock);
    bool first = g_hash_table_size(n->queue) == 0 && !n->all;
    if (g_hash_table_size(n->queue) < QUEUE_MAX)
        g_hash_table_add(n->queue, g_strdup(topic));
    else
        n->all = true;
    g_mutex_unlock(&n->lock);
    if (first)
        wake(n);
}

static bool is_stopping(struct sp_pg_notifier *n)
{
    g_mutex_lock(&n->lock);
    bool stopping = n->stopping;
    g_mutex_unlock(&n->lock);
    return stopping;
}

/* The queued topics as payloads; empties the queue. */
static GPtrArray *take_payloads(struct sp_pg_notifier *n)
{
    GPtrArray *payloads = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GString) payload = g_string_new(NULL);
    GHashTableIter iter;
    gpointer topic;
    g_mutex_lock(&n->lock);
    if (n->all) {
        g_string_assign(payload, "*");
        g_hash_table_remove_all(n->queue);
        n->all = false;
    }
    g_hash_table_iter_init(&iter, n->queue);
    while (g_hash_table_iter_next(&iter, &topic, NULL)) {
        if (payload->len > 0 && payload->len + strlen(topic) + 1 > PAYLOAD_MAX_BYTES) {
            g_ptr_array_add(payloads, g_strdup(payload->str));
            g_string_truncate(payload, 0);
        }
        g_string_append_printf(payload, "%s%s", payload->len ? "\n" : "", (const char *)topic);
    }
    g_hash_table_remove_all(n->queue);
    g_mutex_unlock(&n->lock);
    if (payload->len > 0)
        g_ptr_array_add(payloads, g_strdup(payload->str));
    return payloads;
}

static void send_queued(struct sp_pg_notifier *n, struct sp_pg_conn *conn)
{
    g_autoptr(GPtrArray) payloads = take_payloads(n);
    for (unsigned i = 0; i < payloads->len && !sp_pg_conn_broken(conn); i++) {
        struct sp_db_value value = {.kind = SP_DB_TEXT, .text = payloads->pdata[i]};
        PQclear(sp_pg_conn_run(conn, "SELECT pg_notify('" CHANNEL "', $1)", &value, 1, NULL));
    }
}

/* What the connection has received; our own topics come back too, and are known already. */
static void hear(struct sp_pg_notifier *n, struct sp_pg_conn *conn)
{
    PGconn *handle = sp_pg_conn_handle(conn);
    PGnotify *notice;
    while ((notice = PQnotifies(handle))) {
        if (notice->be_pid != PQbackendPID(handle)) {
            g_auto(GStrv) topics = g_strsplit(notice->extra, "\n", -1);
            for (char **topic = topics; *topic; topic++)
                n->heard(strcmp(*topic, "*") == 0 ? NULL : *topic, n->user);
        }
        PQfreemem(notice);
    }
}

/* A notification is a commit, and commits one for one wait for the disk: not these. */
static struct sp_pg_conn *listen_on(struct sp_pg_notifier *n)
{
    struct sp_pg_conn *conn = sp_pg_conn_open(n->url, NULL);
    PGresult *result =
        conn ? sp_pg_conn_simple(conn, "SET synchronous_commit = off; LISTEN " CHANNEL, NULL)
             : NULL;
    PQclear(result);
    if (result)
        return conn;
    sp_pg_conn_free(conn);
    return NULL;
}

/* Until the connection is lost or the notifier stops. */
static void serve(struct sp_pg_notifier *n, struct sp_pg_conn *conn)
{
    while (!sp_pg_conn_broken(conn)) {
        bool stopping = is_stopping(n);
        send_queued(n, conn);
        hear(n, conn);
        if (stopping)
            return;
        struct pollfd fds[2] = {
            {.fd = n->event_fd, .events = POLLIN},
            {.fd = PQsocket(sp_pg_conn_handle(conn)), .events = POLLIN},
        };
        if (poll(fds, 2, -1) < 0) /* ended by either; TCP keep-alives find a dead peer */
            continue;
        uint64_t count;
        if (fds[0].revents && read(n->event_fd, &count, sizeof count) < 0)
            continue;
        if (fds[1].revents && !PQconsumeInput(sp_pg_conn_handle(conn)))
            return;
    }
}

static gpointer run(gpointer user)
{
    struct sp_pg_notifier *n = user;
    int retry_ms = RETRY_FIRST_MS;
    while (!is_stopping(n)) {
        struct sp_pg_conn *conn = listen_on(n);
        if (conn) {
            retry_ms = RETRY_FIRST_MS;
            n->heard(NULL, n->user); /* whatever came while we did not listen */
            serve(n, conn);
            sp_pg_conn_free(conn);
        }
        struct pollfd event = {.fd = n->event_fd, .events = POLLIN};
        uint64_t count;
        int64_t until_ms = g_get_monotonic_time() / 1000 + retry_ms;
        int left_ms = retry_ms;
        while (left_ms > 0 && !is_stopping(n)) { /* topics to send do not shorten the back-off */
            if (poll(&event, 1, left_ms) > 0 && read(n->event_fd, &count, sizeof count) < 0)
                break;
            left_ms = (int)(until_ms - g_get_monotonic_time() / 1000);
        }
        retry_ms = MIN(retry_ms * 2, RETRY_MOST_MS);
    }
    return NULL;
}

struct sp_pg_notifier *sp_pg_notifier_new(const char *url, sp_db_heard heard, void *user)
{
    struct sp_pg_notifier *n = g_new0(struct sp_pg_notifier, 1);
    n->url = g_strdup(url);
    n->heard = heard;
    n->user = user;
    n->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (n->event_fd < 0)
        g_error("eventfd: %s", g_strerror(errno));
    g_mutex_init(&n->lock);
    n->queue = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    n->thread = g_thread_new("notify", run, n);
    return n;
}

void sp_pg_notifier_free(struct sp_pg_notifier *n)
{
    if (!n)
        return;
    g_mutex_lock(&n->lock);
    n->stopping = true;
    g_mutex_unlock(&n->lock);
    wake(n);
    g_thread_join(n->thread);
    close(n->event_fd);
    g_hash_table_unref(n->queue);
    g_mutex_clear(&n->lock);
    g_free(n->url);
    g_free(n);
}
