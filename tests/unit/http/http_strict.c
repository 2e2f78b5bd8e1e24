/* Requests that must never reach a handler. Each row was accepted by libmicrohttpd alone, or is
 * near one that was. */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/time.h"
#include "http/server.h"
#include "raw.h"

static gint handled;

static void on_any(struct sp_http_request *request, void *user)
{
    g_atomic_int_inc(&handled);
    sp_http_respond_json(request, 200,
                         json_pack("{s:i}", "body", (int)g_bytes_get_size(sp_http_body(request))));
}

static const struct sp_http_route routes[] = {
    {.method = "GET", .pattern = "/x", .handler = on_any},
    {.method = "GET", .pattern = "/x/{}", .handler = on_any},
    {.method = "POST", .pattern = "/x", .handler = on_any, .max_body_bytes = 100000},
    {NULL},
};

static struct sp_http_server *server_start(int64_t head_timeout_ms, int64_t idle_timeout_ms)
{
    g_autoptr(GError) error = NULL;
    struct sp_http_server *server =
        sp_http_server_start(&(struct sp_http_server_config){.address = "127.0.0.1:0",
                                                             .routes = routes,
                                                             .head_timeout_ms = head_timeout_ms,
                                                             .idle_timeout_ms = idle_timeout_ms},
                             &error);
    g_assert_no_error(error);
    return server;
}

#define H "Host: a\r\n"
#define ROW(text) text, sizeof(text) - 1

static void test_refused(void)
{
    static const struct {
        const char *bytes;
        gsize len;
        int status; /* 0: closed without an answer */
        const char *says;
    } rows[] = {
        {ROW("POST /x HTTP/1.1\r\n" H
             "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
         400, "Transfer-Encoding together"},
        {ROW("POST /x HTTP/1.1\r\n" H
             "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
         400, "Transfer-Encoding together"},
        {ROW("POST /x HTTP/1.1\r\n" H "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"), 400,
         "more than one Content-Length"},
        {ROW("POST /x HTTP/1.1\r\n" H "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"), 400,
         "more than one Content-Length"},
        {ROW("POST /x HTTP/1.1\r\n" H "Content-Length: 5, 5\r\n\r\nhello"), 400, NULL},
        {ROW("POST /x HTTP/1.1\r\n" H "Content-Length: +5\r\n\r\nhello"), 400, NULL},
        {ROW("POST /x HTTP/1.1\r\n" H "Content-Length: 5 \r\n\r\nhello"), 400, NULL},
        {ROW("POST /x HTTP/1.1\r\n" H "Content-Length: 99999999999999999999\r\n\r\nhello"), 413,
         NULL},
        {ROW("POST /x HTTP/1.1\r\n" H "Content-Length : 5\r\n\r\nhello"), 400, "header name"},
        {ROW("POST /x HTTP/1.1\r\n" H "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 400,
         "other than chunked"},
        {ROW("POST /x HTTP/1.1\r\n" H "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"), 400,
         "other than chunked"},
        {ROW("POST /x HTTP/1.1\r\n" H
             "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n"),
         400, "Transfer-Encoding together"},
        {ROW("POST /x HTTP/1.0\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400,
         "HTTP/1.0"},
        {ROW("GET /x HTTP/1.1\r\n" H "X: a\0b\r\n\r\n"), 400, "NUL"},
        {ROW("GET /x HTTP/1.1\r\n" H "X: a\0\r\n\r\n"), 400, "NUL"},
        {ROW("GET /x HTTP/1.1\r\n" H "X\0: a\r\n\r\n"), 400, NULL},
        {ROW("GET /x HTTP/1.1\r\n" H "X: \0\0Y: b\r\n\r\n"), 400, NULL},
        {ROW("GET /x HTTP/1.1\r\n" H "\0: a\r\n\r\n"), 400, NULL},
        {ROW("GET /x\0y HTTP/1.1\r\n" H "\r\n"), 400, "request line"},
        {ROW("GET\0 /x HTTP/1.1\r\n" H "\r\n"), 400, NULL},
        {ROW("GET /x HTTP/1.1\0\r\n" H "\r\n"), 400, NULL},
        {ROW("GET /x HTTP/1.1\r\n" H "X: a\rb\r\n\r\n"), 400, "control character"},
        {ROW("GET /x HTTP/1.1\r\n" H "X: a\r\r\n\r\n"), 400, "control character"},
        {ROW("GET /x HTTP/1.1\r\n" H "X: a\x01\r\n\r\n"), 400, "control character"},
        {ROW("GET /x HTTP/1.1\r\n" H "X: a\x7f\r\n\r\n"), 400, "control character"},
        {ROW("GET /x HTTP/1.1\r\n" H "X\r: a\r\n\r\n"), 400, "header name"},
        {ROW("GET /x HTTP/1.1\r\n" H "X: a\nY: b\r\n\r\n"), 400, "bare line feed"},
        {ROW("GET /x HTTP/1.1\n" H "\r\n"), 400, "bare line feed"},
        {ROW("GET /x HTTP/1.1\r\n" H "\n"), 400, "bare line feed"},
        {ROW("GET /x HTTP/1.1\nHost: a\n\n"), 400, "bare line feed"},
        {ROW("GET /x HTTP/1.1\r\n" H "X: a\r\n b\r\n\r\n"), 400, "continuation"},
        {ROW("GET /x HTTP/1.1\r\n" H "X: a\r\n\tb\r\nY: c\r\n\r\n"), 400, "continuation"},
        {ROW("GET /x HTTP/1.1\r\n" H "X:\r\n b\r\n\r\n"), 400, "continuation"},
        {ROW("GET /x HTTP/1.1\r\n X: a\r\n" H "\r\n"), 400, NULL},
        {ROW("GET /x HTTP/1.1\r\n" H "X y: a\r\n\r\n"), 400, "header name"},
        {ROW("GET /x HTTP/1.1\r\n" H ": a\r\n\r\n"), 400, NULL},
        {ROW("GET /x HTTP/1.1\r\n" H "nothing\r\n\r\n"), 400, NULL},
        {ROW("GET /x HTTP/1.1\r\n" H H "\r\n"), 400, "more than one Host"},
        {ROW("GET /x HTTP/1.1\r\n\r\n"), 400, NULL},
        {ROW("GET  /x HTTP/1.1\r\n" H "\r\n"), 400, "request line"},
        {ROW("GET /x  HTTP/1.1\r\n" H "\r\n"), 0, NULL},
        {ROW("GET /x HTTP/1.1 \r\n" H "\r\n"), 400, NULL},
        {ROW("GET /x y HTTP/1.1\r\n" H "\r\n"), 0, NULL},
        {ROW("GET /x\t HTTP/1.1\r\n" H "\r\n"), 400, "percent-encoded"},
        {ROW("GET /x\xff HTTP/1.1\r\n" H "\r\n"), 400, "percent-encoded"},
        {ROW("GET /x#a HTTP/1.1\r\n" H "\r\n"), 400, "percent-encoded"},
        {ROW("G(T /x HTTP/1.1\r\n" H "\r\n"), 400, "method"},
        {ROW("GET /x\r\n" H "\r\n"), 400, NULL},
        {ROW("GET /x HTTP/2.0\r\n" H "\r\n"), 505, NULL},
    };
    struct sp_http_server *server = server_start(0, 0);
    g_atomic_int_set(&handled, 0);
    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autofree char *answer =
            raw_exchange(sp_http_server_address(server), rows[i].bytes, rows[i].len);
        if (raw_status(answer) != rows[i].status || g_atomic_int_get(&handled) ||
            (rows[i].says && !strstr(answer, rows[i].says)))
            g_error("row %" G_GSIZE_FORMAT " (%s) got: %s", i, rows[i].bytes, answer);
        if (rows[i].says) {
            g_assert_nonnull(strstr(answer, "\"code\":\"invalid_request\""));
            g_assert_nonnull(strstr(answer, "X-Request-Id: req_"));
            g_assert_nonnull(strstr(answer, "Connection: close"));
        }
    }
    sp_http_server_stop(server, 1000);
}

/* These reach no handler either, but their framing is sound: the connection goes on. */
static void test_refused_paths(void)
{
    static const struct {
        const char *target;
        int status;
    } rows[] = {
        {"/x/a%2fb", 400},
        {"/x/a%2Fb", 400},
        {"/x/a%00b", 400},
        {"/x/%", 400},
        {"/x/%1", 400},
        {"/x/%zz", 400},
        {"/x/%ff", 400},
        {"/x/..", 400},
        {"/x/%2e%2e", 400},
        {"/./x", 400},
        {"/x?a=%00", 400},
        {"/x?a=%", 400},
        {"/x?%c3=1", 400},
        {"/x/", 404},
        {"//x", 404},
        {"/X", 404},
        {"/", 404},
        {"/x/a/b", 404},
        {"*", 400},
        {"http://a/x", 400},
        {"/1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16/17/18/%zz", 404},
    };
    struct sp_http_server *server = server_start(0, 0);
    g_atomic_int_set(&handled, 0);
    const int fd = raw_connect(sp_http_server_address(server));
    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autofree char *text = g_strdup_printf("GET %s HTTP/1.1\r\n" H "\r\n", rows[i].target);
        raw_send_text(fd, text);
        g_autoptr(GString) answer = g_string_new(NULL);
        g_assert_true(raw_read_until(fd, answer, "}}", 5000));
        if (raw_status(answer->str) != rows[i].status)
            g_error("%s got: %s", rows[i].target, answer->str);
    }
    g_assert_cmpint(g_atomic_int_get(&handled), ==, 0);
    close(fd);
    sp_http_server_stop(server, 1000);
}

static void test_header_count(void)
{
    struct sp_http_server *server = server_start(0, 0);
    for (unsigned n = 64; n <= 65; n++) {
        g_autoptr(GString) text = g_string_new("GET /x HTTP/1.1\r\n" H "Connection: close\r\n");
        for (unsigned i = 2; i < n; i++)
            g_string_append_printf(text, "X-%u: %u\r\n", i, i);
        g_string_append(text, "\r\n");
        g_autofree char *answer =
            raw_exchange(sp_http_server_address(server), text->str, text->len);
        g_assert_cmpint(raw_status(answer), ==, n == 64 ? 200 : 400);
    }
    sp_http_server_stop(server, 1000);
}

/* A head that makes libmicrohttpd grow its buffer must still pass the look at it, at any split. */
static void test_long_and_split_heads(void)
{
    struct sp_http_server *server = server_start(0, 0);
    for (gsize size = 1000; size <= 40000; size += 3000) {
        g_autofree char *fill = g_strnfill(size / 2, 'v');
        g_autofree char *text =
            g_strdup_printf("\r\nGET /x?a=1&b=2 HTTP/1.1\r\n" H
                            "A: %s\r\nCookie: a=b; c=d\r\nEmpty:\r\nEmpty2: \r\nB:\t%s\r\n"
                            "Connection: close\r\n\r\n",
                            fill, fill);
        const gsize len = strlen(text);
        const int fd = raw_connect(sp_http_server_address(server));
        for (gsize at = 0; at < len; at += 1777) {
            raw_send(fd, text + at, MIN(1777, len - at));
            if (size < 10000)
                g_usleep(1000); /* lets the pieces arrive on their own */
        }
        g_autoptr(GString) answer = g_string_new(NULL);
        g_assert_true(raw_read_until(fd, answer, NULL, 5000));
        if (raw_status(answer->str) != 200)
            g_error("%" G_GSIZE_FORMAT " got: %s", size, answer->str);
        close(fd);
    }
    g_autofree char *fill = g_strnfill(200000, 'v');
    g_autofree char *huge = g_strdup_printf("GET /x HTTP/1.1\r\n" H "A: %s\r\n\r\n", fill);
    const int fd = raw_connect(sp_http_server_address(server));
    raw_send_text(fd, huge);
    g_autoptr(GString) answer = g_string_new(NULL);
    raw_read_until(fd, answer, "\r\n", 5000);
    g_assert_true(raw_status(answer->str) == 431 || answer->len == 0);
    close(fd);
    sp_http_server_stop(server, 1000);
}

static void test_pipelining(void)
{
    struct sp_http_server *server = server_start(0, 0);
    static const char text[] = "GET /x HTTP/1.1\r\n" H "\r\n"
                               "POST /x HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello"
                               "GET /nope HTTP/1.1\r\n" H "\r\n"
                               "POST /x HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n"
                               "3\r\nabc\r\n4;e=f\r\ndefg\r\n0\r\nT: x\r\n\r\n"
                               "GET /x HTTP/1.1\r\n" H "Connection: close\r\n\r\n";
    g_autofree char *answer = raw_exchange(sp_http_server_address(server), text, strlen(text));
    g_auto(GStrv) parts = g_strsplit(answer, "HTTP/1.1 ", -1);
    g_assert_cmpuint(g_strv_length(parts), ==, 6);
    static const char *const starts[] = {"200", "200", "404", "200", "200"};
    static const char *const bodies[] = {"{\"body\":0}", "{\"body\":5}", "not_found",
                                         "{\"body\":7}", "{\"body\":0}"};
    for (unsigned i = 0; i < 5; i++) {
        g_assert_true(g_str_has_prefix(parts[i + 1], starts[i]));
        g_assert_nonnull(strstr(parts[i + 1], bodies[i]));
    }
    sp_http_server_stop(server, 1000);
}

/* Sends one byte each 20 ms; returns after how many ms the server closed. */
static int64_t drip(int fd, const char *text, int64_t limit_ms)
{
    const int64_t begin_ms = sp_time_monotonic_ms();
    g_autoptr(GString) answer = g_string_new(NULL);
    for (gsize i = 0; sp_time_monotonic_ms() - begin_ms < limit_ms; i++) {
        raw_send(fd, &text[i < strlen(text) ? i : strlen(text) - 1], 1);
        if (raw_read_until(fd, answer, NULL, 20))
            break;
    }
    g_assert_cmpuint(answer->len, ==, 0);
    return sp_time_monotonic_ms() - begin_ms;
}

static void test_slow_heads(void)
{
    struct sp_http_server *server = server_start(400, 900);
    static const char *const heads[] = {"GET /x HTTP/1.1\r\nHost: a\r\nX: aaaaaaaaaaaaaaaaaaaaaaa",
                                        "GET /xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"};
    for (unsigned i = 0; i < G_N_ELEMENTS(heads); i++) {
        const int fd = raw_connect(sp_http_server_address(server));
        const int64_t took_ms = drip(fd, heads[i], 5000);
        g_test_message("slow head closed after %" G_GINT64_FORMAT " ms", took_ms);
        g_assert_cmpint(took_ms, >=, 350);
        g_assert_cmpint(took_ms, <, 2000);
        close(fd);
    }
    /* The same on a kept connection: the request line has the idle time, the headers the head's. */
    for (unsigned i = 0; i < G_N_ELEMENTS(heads); i++) {
        const int fd = raw_connect(sp_http_server_address(server));
        g_autoptr(GString) answer = g_string_new(NULL);
        raw_send_text(fd, "GET /x HTTP/1.1\r\n" H "\r\n");
        g_assert_true(raw_read_until(fd, answer, "{\"body\":0}", 5000));
        const int64_t took_ms = drip(fd, heads[i], 5000);
        g_test_message("slow second head closed after %" G_GINT64_FORMAT " ms", took_ms);
        g_assert_cmpint(took_ms, <, 3000);
        close(fd);
    }
    sp_http_server_stop(server, 1000);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/http_strict/refused", test_refused);
    g_test_add_func("/http_strict/refused_paths", test_refused_paths);
    g_test_add_func("/http_strict/header_count", test_header_count);
    g_test_add_func("/http_strict/long_and_split_heads", test_long_and_split_heads);
    g_test_add_func("/http_strict/pipelining", test_pipelining);
    g_test_add_func("/http_strict/slow_heads", test_slow_heads);
    return g_test_run();
}
