/* Streamed answers: latency, clients that go, servers that stop. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "http/client.h"
#include "http/server.h"
#include "raw.h"
#include "wire/sse.h"

#define H "Host: a\r\n"

/* Events come from a queue that the test fills. */
struct feed {
    GMutex lock;
    GCond changed;
    GQueue lines; /* of char *; "" is the proper end, "!" a break */
    gint opened, freed;
};

struct source {
    struct feed *feed;
    struct sp_http_request *request;
};

static gint gone_seen;

static ssize_t pull(void *data, char *buffer, size_t max)
{
    struct source *source = data;
    struct feed *feed = source->feed;
    g_autofree char *line = NULL;
    g_mutex_lock(&feed->lock);
    while (!(line = g_queue_pop_head(&feed->lines))) {
        g_cond_wait_until(&feed->changed, &feed->lock, g_get_monotonic_time() + 20000);
        if (sp_http_client_gone(source->request)) {
            g_atomic_int_inc(&gone_seen);
            break;
        }
        if (sp_http_server_stopping(sp_http_request_server(source->request)))
            break;
    }
    g_mutex_unlock(&feed->lock);
    if (!line || strcmp(line, "!") == 0)
        return -1;
    const size_t len = strlen(line);
    g_assert_cmpuint(len, <=, max);
    if (len > 0)
        memcpy(buffer, line, len);
    return (ssize_t)len;
}

static void source_free(gpointer data)
{
    struct source *source = data;
    /* The request has to be alive still. */
    g_assert_cmpstr(sp_http_path(source->request), ==, "/events");
    g_assert_nonnull(sp_http_header(source->request, "Host"));
    g_atomic_int_inc(&source->feed->freed);
    g_free(source);
}

static void on_events(struct sp_http_request *request, void *user)
{
    struct source *source = g_new0(struct source, 1);
    source->feed = user;
    source->request = request;
    g_atomic_int_inc(&source->feed->opened);
    sp_http_respond_stream(request, 200, "text/event-stream", pull, source, source_free);
}

/* A file of n bytes, in answer of ?size=n&give=m: announced n, given m. */
struct file {
    guint64 left;
};

static ssize_t file_pull(void *data, char *buffer, size_t max)
{
    struct file *file = data;
    const size_t n = (size_t)MIN(file->left, max);
    memset(buffer, 'f', n);
    file->left -= n;
    return (ssize_t)n;
}

static void on_file(struct sp_http_request *request, void *user)
{
    struct file *file = g_new0(struct file, 1);
    file->left = g_ascii_strtoull(sp_http_query(request, "give"), NULL, 10);
    sp_http_respond_stream_sized(request, 200, "application/octet-stream",
                                 g_ascii_strtoull(sp_http_query(request, "size"), NULL, 10),
                                 file_pull, file, g_free);
}

static void on_block(struct sp_http_request *request, void *user)
{
    struct feed *feed = user;
    g_atomic_int_inc(&feed->opened);
    while (!sp_http_client_gone(request))
        g_usleep(5000);
    g_atomic_int_inc(&gone_seen);
    sp_http_respond_json(request, 200, json_object());
}

static const struct sp_http_route routes[] = {
    {.method = "GET", .pattern = "/events", .handler = on_events},
    {.method = "GET", .pattern = "/file", .handler = on_file},
    {.method = "GET", .pattern = "/block", .handler = on_block},
    {NULL},
};

struct fixture {
    struct feed feed;
    struct sp_http_server *server;
    const char *address;
};

static void set_up(struct fixture *f, gconstpointer data)
{
    g_autoptr(GError) error = NULL;
    g_mutex_init(&f->feed.lock);
    g_cond_init(&f->feed.changed);
    g_queue_init(&f->feed.lines);
    g_atomic_int_set(&gone_seen, 0);
    f->server = sp_http_server_start(
        &(struct sp_http_server_config){
            .address = "127.0.0.1:0", .routes = routes, .user = &f->feed, .idle_timeout_ms = 1000},
        &error);
    g_assert_no_error(error);
    f->address = sp_http_server_address(f->server);
}

static void tear_down(struct fixture *f, gconstpointer data)
{
    if (f->server)
        sp_http_server_stop(f->server, 2000);
    g_queue_clear_full(&f->feed.lines, g_free);
    g_mutex_clear(&f->feed.lock);
    g_cond_clear(&f->feed.changed);
}

static void feed_push(struct feed *feed, const char *line)
{
    g_mutex_lock(&feed->lock);
    g_queue_push_tail(&feed->lines, g_strdup(line));
    g_cond_broadcast(&feed->changed);
    g_mutex_unlock(&feed->lock);
}

static void wait_count(gint *count, gint wanted)
{
    const int64_t deadline_ms = sp_time_monotonic_ms() + 5000;
    while (g_atomic_int_get(count) < wanted && sp_time_monotonic_ms() < deadline_ms)
        g_usleep(1000);
    g_assert_cmpint(g_atomic_int_get(count), ==, wanted);
}

static int open_events(struct fixture *f)
{
    const int fd = raw_connect(f->address);
    raw_send_text(fd, "GET /events HTTP/1.1\r\n" H "\r\n");
    return fd;
}

static gint by_value(gconstpointer a, gconstpointer b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static void test_latency(struct fixture *f, gconstpointer data)
{
    int64_t took_us[200];
    const int fd = open_events(f);
    g_autoptr(GString) got = g_string_new(NULL);
    /* The head comes before the first event does. */
    g_assert_true(raw_read_until(fd, got, "\r\n\r\n", 5000));
    g_assert_nonnull(strstr(got->str, "Content-Type: text/event-stream\r\n"));
    g_assert_nonnull(strstr(got->str, "Transfer-Encoding: chunked\r\n"));
    for (unsigned i = 0; i < G_N_ELEMENTS(took_us); i++) {
        g_string_truncate(got, 0);
        const int64_t begin_us = sp_time_monotonic_us();
        feed_push(&f->feed, "data: hello\n\n");
        g_assert_true(raw_read_until(fd, got, "hello\n\n\r\n", 5000));
        took_us[i] = sp_time_monotonic_us() - begin_us;
    }
    qsort(took_us, G_N_ELEMENTS(took_us), sizeof(took_us[0]), by_value);
    g_test_message("one event: p50 %" G_GINT64_FORMAT " us, p99 %" G_GINT64_FORMAT " us",
                   took_us[G_N_ELEMENTS(took_us) / 2], took_us[G_N_ELEMENTS(took_us) * 99 / 100]);
    feed_push(&f->feed, "");
    g_string_truncate(got, 0);
    g_assert_true(raw_read_until(fd, got, "0\r\n\r\n", 5000));
    /* A stream that ended properly leaves the connection of use. */
    raw_send_text(fd, "GET /file?size=3&give=3 HTTP/1.1\r\n" H "\r\n");
    g_assert_true(raw_read_until(fd, got, "\r\n\r\nfff", 5000));
    close(fd);
    wait_count(&f->feed.freed, 1);
}

static void test_pause_longer_than_idle(struct fixture *f, gconstpointer data)
{
    const int fd = open_events(f);
    g_autoptr(GString) got = g_string_new(NULL);
    for (int i = 0; i < 2; i++) {
        g_usleep(2300 * 1000); /* the idle time is 1 s */
        feed_push(&f->feed, "data: late\n\n");
        g_string_truncate(got, 0);
        g_assert_true(raw_read_until(fd, got, "late\n\n\r\n", 5000));
    }
    feed_push(&f->feed, "");
    g_assert_true(raw_read_until(fd, got, "0\r\n\r\n", 5000));
    close(fd);
}

static void test_break(struct fixture *f, gconstpointer data)
{
    const int fd = open_events(f);
    g_autoptr(GString) got = g_string_new(NULL);
    feed_push(&f->feed, "data: one\n\n");
    feed_push(&f->feed, "!");
    g_assert_true(raw_read_until(fd, got, NULL, 5000));
    g_assert_nonnull(strstr(got->str, "one"));
    g_assert_null(strstr(got->str, "0\r\n\r\n"));
    close(fd);
    wait_count(&f->feed.freed, 1);
}

static void test_client_gone(struct fixture *f, gconstpointer data)
{
    const int fd = open_events(f);
    g_autoptr(GString) got = g_string_new(NULL);
    feed_push(&f->feed, "data: one\n\n");
    g_assert_true(raw_read_until(fd, got, "one", 5000));
    const int64_t begin_ms = sp_time_monotonic_ms();
    close(fd);
    wait_count(&f->feed.freed, 1);
    g_assert_cmpint(g_atomic_int_get(&gone_seen), ==, 1);
    g_assert_cmpint(sp_time_monotonic_ms() - begin_ms, <, 500);
    const int other = raw_connect(f->address);
    raw_send_text(other, "GET /block HTTP/1.1\r\n" H "\r\n");
    wait_count(&f->feed.opened, 2);
    close(other);
    wait_count(&gone_seen, 2);
}

/* A client that stops reading is cut after the idle time. */
static void test_client_that_does_not_read(struct fixture *f, gconstpointer data)
{
    const int fd = raw_connect(f->address);
    raw_send_text(fd, "GET /file?size=100000000&give=100000000 HTTP/1.1\r\n" H "\r\n");
    g_usleep(2500 * 1000);
    g_autoptr(GString) got = g_string_new(NULL);
    g_assert_true(raw_read_until(fd, got, NULL, 10000));
    g_assert_cmpuint(got->len, <, 50000000);
    close(fd);
}

static void test_sized(struct fixture *f, gconstpointer data)
{
    static const char whole[] =
        "GET /file?size=10000000&give=10000000 HTTP/1.1\r\n" H "Connection: close\r\n\r\n";
    static const char cut[] = "GET /file?size=1000000&give=999999 HTTP/1.1\r\n" H "\r\n";
    g_autofree char *a = raw_exchange(f->address, whole, strlen(whole));
    g_assert_nonnull(strstr(a, "Content-Length: 10000000\r\n"));
    g_assert_cmpuint(strlen(strstr(a, "\r\n\r\n")), ==, 10000004);
    g_autofree char *b = raw_exchange(f->address, cut, strlen(cut));
    g_assert_cmpuint(strlen(strstr(b, "\r\n\r\n")), <, 1000004);
}

static void test_stop_with_open_streams(struct fixture *f, gconstpointer data)
{
    int fds[8];
    for (unsigned i = 0; i < G_N_ELEMENTS(fds); i++)
        fds[i] = open_events(f);
    wait_count(&f->feed.opened, 8);
    const int idle = raw_connect(f->address);
    const int64_t begin_ms = sp_time_monotonic_ms();
    sp_http_server_stop(g_steal_pointer(&f->server), 5000);
    g_test_message("stop took %" G_GINT64_FORMAT " ms", sp_time_monotonic_ms() - begin_ms);
    g_assert_cmpint(sp_time_monotonic_ms() - begin_ms, <, 1500);
    g_assert_cmpint(g_atomic_int_get(&f->feed.freed), ==, 8);
    for (unsigned i = 0; i < G_N_ELEMENTS(fds); i++) {
        g_autoptr(GString) got = g_string_new(NULL);
        g_assert_true(raw_read_until(fds[i], got, NULL, 1000));
        close(fds[i]);
    }
    close(idle);
}

/* A handler that looks only at its client ends when the grace is over. */
static void test_stop_after_grace(struct fixture *f, gconstpointer data)
{
    const int fd = raw_connect(f->address);
    raw_send_text(fd, "GET /block HTTP/1.1\r\n" H "\r\n");
    wait_count(&f->feed.opened, 1);
    const int64_t begin_ms = sp_time_monotonic_ms();
    sp_http_server_stop(g_steal_pointer(&f->server), 300);
    g_assert_cmpint(sp_time_monotonic_ms() - begin_ms, >=, 300);
    g_assert_cmpint(sp_time_monotonic_ms() - begin_ms, <, 2000);
    close(fd);
}

/* --- the same through our own client and parser */
struct reader {
    struct sp_sse_parser *parser;
    unsigned events;
};

static bool on_event(void *user, const struct sp_sse_event *event)
{
    struct reader *reader = user;
    reader->events++;
    g_assert_cmpstr(event->type, ==, "tick");
    return reader->events < 3;
}

static bool on_data(void *user, const char *bytes, size_t len)
{
    struct reader *reader = user;
    return sp_sse_parser_feed(reader->parser, bytes, len, on_event, reader);
}

static void test_read_with_client(struct fixture *f, gconstpointer data)
{
    g_autofree char *url = g_strconcat("http://", f->address, NULL);
    struct sp_http_client *client = sp_http_client_new(url, NULL);
    struct reader reader = {.parser = sp_sse_parser_new(1000)};
    for (int i = 1; i <= 5; i++) {
        g_autoptr(GString) event = g_string_new(NULL);
        sp_sse_append(event, (uint64_t)i, "tick", "{}", 2);
        feed_push(&f->feed, event->str);
    }
    struct sp_http_answer answer = {0};
    g_autoptr(GError) error = NULL;
    const struct sp_http_call call = {
        .method = "GET", .path = "/events", .on_data = on_data, .user = &reader};
    g_assert_false(sp_http_call(client, &call, &answer, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_assert_cmpuint(reader.events, ==, 3);
    wait_count(&f->feed.freed, 1);
    sp_sse_parser_free(reader.parser);
    sp_http_client_free(client);
}

#define ADD(path, test)                                                                            \
    g_test_add("/http_streams/" path, struct fixture, NULL, set_up, test, tear_down)

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    ADD("latency", test_latency);
    ADD("pause_longer_than_idle", test_pause_longer_than_idle);
    ADD("break", test_break);
    ADD("client_gone", test_client_gone);
    ADD("client_that_does_not_read", test_client_that_does_not_read);
    ADD("sized", test_sized);
    ADD("stop_with_open_streams", test_stop_with_open_streams);
    ADD("stop_after_grace", test_stop_after_grace);
    ADD("read_with_client", test_read_with_client);
    return g_test_run();
}
