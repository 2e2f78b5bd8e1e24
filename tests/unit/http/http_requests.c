/* Requests as handlers see them, bodies and their limits, and the answers. */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "http/server.h"
#include "raw.h"

#define H "Host: a\r\n"

/* What the handlers saw. */
struct seen {
    gint handled, authorized, freed;
};

static bool add_pair(void *user, const char *name, const char *value)
{
    json_array_append_new(user, json_pack("[s,s]", name, value));
    return json_array_size(user) < 4;
}

static void on_echo(struct sp_http_request *request, void *user)
{
    struct seen *seen = user;
    g_atomic_int_inc(&seen->handled);
    json_t *pairs = json_array();
    sp_http_query_each(request, add_pair, pairs);
    sp_http_add_header(request, "X-Injected", "a\r\nX-Evil: 1");
    sp_http_respond_json(request, 201,
                         json_pack("{s:s, s:s, s:s*, s:s*, s:s*, s:s*, s:o, s:s*, s:i}", "method",
                                   sp_http_method(request), "path", sp_http_path(request), "p0",
                                   sp_http_param(request, 0), "p1", sp_http_param(request, 1), "q",
                                   sp_http_query(request, "q"), "bearer", sp_http_bearer(request),
                                   "pairs", pairs, "header", sp_http_header(request, "x-thing"),
                                   "body", (int)g_bytes_get_size(sp_http_body(request))));
}

static void on_json(struct sp_http_request *request, void *user)
{
    g_autoptr(GError) error = NULL;
    json_t *body = sp_http_body_json(request, &error);
    if (body)
        sp_http_respond_json(request, 200, body);
    else
        sp_http_respond_error(request, error);
}

static void on_silent(struct sp_http_request *request, void *user)
{
}

static void on_twice(struct sp_http_request *request, void *user)
{
    sp_http_respond_bytes(request, 200, "text/plain", "one", 3);
    sp_http_respond_bytes(request, 200, "text/plain", "two", 3);
}

static void on_busy(struct sp_http_request *request, void *user)
{
    g_autoptr(GError) error = g_error_new_literal(SP_ERROR, SP_ERROR_RATE_LIMITED, "slower");
    sp_http_respond_error_retry(request, error, 1500);
}

static void count_free(gpointer data)
{
    g_atomic_int_inc((gint *)data);
}

static bool authorize(struct sp_http_request *request, void *user, GError **error)
{
    struct seen *seen = user;
    g_atomic_int_inc(&seen->authorized);
    sp_http_set_data(request, &seen->freed, count_free);
    if (g_strcmp0(sp_http_bearer(request), "sk_good") == 0)
        return true;
    g_set_error_literal(error, SP_ERROR, SP_ERROR_UNAUTHENTICATED, "no good key");
    return false;
}

/* A streamed body: the bytes are summed; one of '!' is refused. */
struct upload {
    guint64 bytes;
    guint pieces;
};

static bool on_piece(struct sp_http_request *request, const char *bytes, size_t len, GError **error)
{
    struct upload *upload = sp_http_data(request);
    if (!upload) {
        upload = g_new0(struct upload, 1);
        sp_http_set_data(request, upload, g_free);
    }
    upload->bytes += len;
    upload->pieces++;
    if (!memchr(bytes, '!', len))
        return true;
    g_set_error_literal(error, SP_ERROR, SP_ERROR_CONFLICT, "a bang");
    return false;
}

static void on_uploaded(struct sp_http_request *request, void *user)
{
    const struct upload *upload = sp_http_data(request);
    sp_http_respond_json(request, 200,
                         json_pack("{s:I}", "bytes", (json_int_t)(upload ? upload->bytes : 0)));
}

static const struct sp_http_route routes[] = {
    {.method = "GET", .pattern = "/echo", .handler = on_echo},
    {.method = "POST", .pattern = "/echo", .handler = on_echo, .max_body_bytes = 1000},
    {.method = "GET", .pattern = "/echo/{}/and/{}", .handler = on_echo},
    {.method = "DELETE", .pattern = "/echo/{}/and/{}", .handler = on_echo, .max_body_bytes = 10},
    {.method = "GET", .pattern = "/once", .handler = on_echo, .refuse_head = true},
    {.method = "POST", .pattern = "/json", .handler = on_json, .max_body_bytes = 1 << 20},
    {.method = "GET", .pattern = "/silent", .handler = on_silent},
    {.method = "GET", .pattern = "/twice", .handler = on_twice},
    {.method = "GET", .pattern = "/busy", .handler = on_busy},
    {.method = "POST",
     .pattern = "/key",
     .handler = on_echo,
     .authorize = authorize,
     .max_body_bytes = 10u << 20},
    {.method = "PUT", .pattern = "/up", .handler = on_uploaded, .on_body = on_piece},
    {NULL},
};

struct fixture {
    struct sp_http_server *server;
    struct seen seen;
    const char *address;
};

static void set_up(struct fixture *f, gconstpointer data)
{
    g_autoptr(GError) error = NULL;
    f->server = sp_http_server_start(&(struct sp_http_server_config){.address = "127.0.0.1:0",
                                                                     .routes = routes,
                                                                     .user = &f->seen,
                                                                     .head_timeout_ms = 500,
                                                                     .body_timeout_ms = 700},
                                     &error);
    g_assert_no_error(error);
    f->address = sp_http_server_address(f->server);
}

static void tear_down(struct fixture *f, gconstpointer data)
{
    sp_http_server_stop(f->server, 2000);
}

/* Sends on a connection, reads until needle; the answer so far. */
static char *ask(int fd, const char *text, const char *needle)
{
    g_autoptr(GString) answer = g_string_new(NULL);
    raw_send_text(fd, text);
    if (!raw_read_until(fd, answer, needle, 5000))
        g_error("no %s in the answer to %s: %s", needle, text, answer->str);
    return g_string_free(g_steal_pointer(&answer), FALSE);
}

static void assert_contains(const char *text, const char *part)
{
    if (!strstr(text, part))
        g_error("no '%s' in: %s", part, text);
}

static void test_request_parts(struct fixture *f, gconstpointer data)
{
    const int fd = raw_connect(f->address);
    g_autofree char *a =
        ask(fd,
            "GET /ec%68o/a%20b%2bc/and/%c3%a9?q=1+2%2B3&&x&y=%26=&z=1&w=2 "
            "HTTP/1.1\r\n" H "X-Thing: yes\r\nauthorization: bearer  abc.DEF=\r\n\r\n",
            "\"body\":0}");
    g_assert_cmpint(raw_status(a), ==, 201);
    assert_contains(a,
                    "\"p0\":\"a b+c\",\"p1\":\"\xc3\xa9\",\"q\":\"1 2+3\",\"bearer\":\"abc.DEF=\"");
    assert_contains(a, "\"pairs\":[[\"q\",\"1 2+3\"],[\"x\",\"\"],[\"y\",\"&=\"],[\"z\",\"1\"]]");
    assert_contains(a, "\"header\":\"yes\"");
    assert_contains(a, "Cache-Control: no-store\r\n");
    assert_contains(a, "Content-Type: application/json\r\n");
    g_assert_null(strstr(a, "X-Evil"));
    static const char *const no_bearer[] = {
        "Authorization: Basic abc",  "Authorization: Bearer",
        "Authorization: Bearer a b", "Authorization: Bearer a\tb",
        "Authorization: Bearer a,b", "Authorization: Bearer a\r\nAuthorization: Bearer b"};
    for (gsize i = 0; i < G_N_ELEMENTS(no_bearer); i++) {
        g_autofree char *text =
            g_strdup_printf("GET /echo HTTP/1.1\r\n" H "%s\r\n\r\n", no_bearer[i]);
        g_autofree char *answer = ask(fd, text, "\"body\":0}");
        g_assert_null(strstr(answer, "bearer"));
    }
    close(fd);
}

static void test_methods(struct fixture *f, gconstpointer data)
{
    const int fd = raw_connect(f->address);
    g_autofree char *a = ask(fd, "PUT /echo HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nabc", "}}");
    g_assert_cmpint(raw_status(a), ==, 405);
    assert_contains(a, "Allow: GET, HEAD, POST\r\n");
    assert_contains(a, "\"code\":\"invalid_request\"");
    g_autofree char *b = ask(fd, "GET /nope HTTP/1.1\r\n" H "\r\n", "}}");
    g_assert_cmpint(raw_status(b), ==, 404);
    assert_contains(b, "\"code\":\"not_found\"");
    assert_contains(b, "\"request_id\":\"req_");
    g_autofree char *c = ask(fd, "HEAD /echo HTTP/1.1\r\n" H "\r\n", "\r\n\r\n");
    g_assert_cmpint(raw_status(c), ==, 201);
    assert_contains(c, "Content-Length: ");
    g_assert_true(g_str_has_suffix(c, "\r\n\r\n"));
    g_autofree char *d = ask(fd, "HEAD /once HTTP/1.1\r\n" H "\r\n", "\r\n\r\n");
    g_assert_cmpint(raw_status(d), ==, 405);
    assert_contains(d, "Allow: GET\r\n");
    g_autofree char *e = ask(fd, "DELETE /echo/1/and/2 HTTP/1.1\r\n" H "\r\n", "\"body\":0}");
    g_assert_cmpint(raw_status(e), ==, 201);
    close(fd);
}

static void test_json_bodies(struct fixture *f, gconstpointer data)
{
    static const struct {
        const char *body;
        int status;
        const char *says;
    } rows[] = {
        {"{\"a\":[1]}", 200, "{\"a\":[1]}"}, {"", 200, "{}"},
        {"[]", 400, "\"field\":\"\""},       {"{\"a\":1,\"a\":2}", 400, "invalid_request"},
        {"{", 400, "invalid_request"},
    };
    const int fd = raw_connect(f->address);
    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autofree char *text =
            g_strdup_printf("POST /json HTTP/1.1\r\n" H "Content-Length: %zu\r\n\r\n%s",
                            strlen(rows[i].body), rows[i].body);
        g_autofree char *answer = ask(fd, text, rows[i].status == 200 ? rows[i].says : "}}");
        g_assert_cmpint(raw_status(answer), ==, rows[i].status);
        assert_contains(answer, rows[i].says);
    }
    close(fd);
}

static void test_answers_of_handlers(struct fixture *f, gconstpointer data)
{
    const int fd = raw_connect(f->address);
    g_autofree char *a = ask(fd, "GET /silent HTTP/1.1\r\n" H "\r\n", "}}");
    g_assert_cmpint(raw_status(a), ==, 500);
    g_autofree char *b = ask(fd, "GET /twice HTTP/1.1\r\n" H "\r\n", "one");
    g_assert_cmpint(raw_status(b), ==, 200);
    g_autofree char *c = ask(fd, "GET /busy HTTP/1.1\r\n" H "\r\n", "}}");
    g_assert_cmpint(raw_status(c), ==, 429);
    assert_contains(c, "Retry-After: 2\r\n");
    assert_contains(c, "\"retry_after_ms\":1500");
    close(fd);
}

static void test_too_large(struct fixture *f, gconstpointer data)
{
    /* A bit too long, with a length: the connection goes on. */
    const int fd = raw_connect(f->address);
    g_autofree char *fill = g_strnfill(1001, 'x');
    g_autofree char *text =
        g_strdup_printf("POST /echo HTTP/1.1\r\n" H "Content-Length: 1001\r\n\r\n%s", fill);
    g_autofree char *a = ask(fd, text, "}}");
    g_assert_cmpint(raw_status(a), ==, 413);
    assert_contains(a, "\"code\":\"payload_too_large\"");
    g_assert_null(strstr(a, "Connection: close"));
    g_autofree char *just =
        g_strdup_printf("POST /echo HTTP/1.1\r\n" H "Content-Length: 1000\r\n\r\n%.1000s", fill);
    g_autofree char *b = ask(fd, just, "\"body\":1000}");
    g_assert_cmpint(raw_status(b), ==, 201);
    close(fd);
    /* Much too long, and sent whole: the answer still arrives, the connection is closed. */
    g_autoptr(GString) large = g_string_new(NULL);
    g_string_printf(large, "POST /echo HTTP/1.1\r\n" H "Content-Length: 4000000\r\n\r\n");
    while (large->len < 4000000)
        g_string_append_len(large, fill, 1000);
    g_autofree char *c = raw_exchange(f->address, large->str, large->len);
    g_assert_cmpint(raw_status(c), ==, 413);
    assert_contains(c, "Connection: close");
    /* The same in chunks: noticed in the middle of the body. */
    g_autoptr(GString) chunks = g_string_new(NULL);
    g_string_printf(chunks, "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n");
    while (chunks->len < 3000000)
        g_string_append_printf(chunks, "3e9\r\n%s\r\n", fill);
    g_autofree char *d = raw_exchange(f->address, chunks->str, chunks->len);
    g_assert_cmpint(raw_status(d), ==, 413);
    assert_contains(d, "payload_too_large");
    assert_contains(d, "Connection: close");
    g_assert_cmpint(g_atomic_int_get(&f->seen.handled), ==, 1);
}

static void test_continue(struct fixture *f, gconstpointer data)
{
    /* Wanted: the server says so at once. */
    int fd = raw_connect(f->address);
    const int64_t begin_ms = sp_time_monotonic_ms();
    g_autofree char *a =
        ask(fd, "POST /echo HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\n");
    g_assert_cmpint(sp_time_monotonic_ms() - begin_ms, <, 300);
    g_autofree char *b = ask(fd, "hello", "\"body\":5}");
    g_assert_cmpint(raw_status(b), ==, 201);
    close(fd);
    /* Not wanted: the refusal comes instead, and no body is asked for. */
    static const char *const heads[] = {
        "POST /echo HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 1001\r\n\r\n",
        "POST /key HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",
        "POST /nope HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",
    };
    static const int statuses[] = {413, 401, 404};
    for (gsize i = 0; i < G_N_ELEMENTS(heads); i++) {
        fd = raw_connect(f->address);
        g_autofree char *answer = ask(fd, heads[i], "}}");
        g_assert_cmpint(raw_status(answer), ==, statuses[i]);
        close(fd);
    }
}

static void test_authorize_before_body(struct fixture *f, gconstpointer data)
{
    int fd = raw_connect(f->address);
    /* Five megabytes announced, none sent: the answer must not wait for them. */
    g_autofree char *a =
        ask(fd, "POST /key HTTP/1.1\r\n" H "Content-Length: 5000000\r\n\r\n", "}}");
    g_assert_cmpint(raw_status(a), ==, 401);
    assert_contains(a, "WWW-Authenticate: Bearer");
    close(fd);
    /* A short body is read and dropped, and the connection is of further use. */
    fd = raw_connect(f->address);
    g_autofree char *b = ask(fd, "POST /key HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello", "}}");
    g_assert_cmpint(raw_status(b), ==, 401);
    g_assert_cmpint(g_atomic_int_get(&f->seen.handled), ==, 0);
    g_autofree char *c = ask(fd,
                             "POST /key HTTP/1.1\r\n" H "Authorization: Bearer sk_good\r\n"
                             "Content-Length: 5\r\n\r\nhello",
                             "\"body\":5}");
    g_assert_cmpint(raw_status(c), ==, 201);
    close(fd);
    g_assert_cmpint(g_atomic_int_get(&f->seen.authorized), ==, 3);
}

static void test_streamed_bodies(struct fixture *f, gconstpointer data)
{
    g_autofree char *fill = g_strnfill(1000, 'x');
    g_autoptr(GString) good = g_string_new(
        "PUT /up HTTP/1.1\r\n" H "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (unsigned i = 0; i < 5000; i++)
        g_string_append_printf(good, "3e8\r\n%s\r\n", fill);
    g_string_append(good, "0\r\n\r\n");
    g_autofree char *a = raw_exchange(f->address, good->str, good->len);
    g_assert_cmpint(raw_status(a), ==, 200);
    assert_contains(a, "{\"bytes\":5000000}");
    static const char none[] =
        "PUT /up HTTP/1.1\r\n" H "Connection: close\r\nContent-Length: 0\r\n\r\n";
    g_autofree char *empty = raw_exchange(f->address, none, strlen(none));
    assert_contains(empty, "{\"bytes\":0}");
    /* Refused in the middle, far from the end. */
    g_autoptr(GString) bad =
        g_string_new("PUT /up HTTP/1.1\r\n" H "Content-Length: 5000000\r\n\r\n");
    for (unsigned i = 0; i < 5000; i++)
        g_string_append(bad, fill);
    bad->str[100000] = '!';
    g_autofree char *b = raw_exchange(f->address, bad->str, bad->len);
    g_assert_cmpint(raw_status(b), ==, 409);
    assert_contains(b, "a bang");
    /* Refused near the end: the connection goes on. */
    const int fd = raw_connect(f->address);
    g_autofree char *c = ask(fd, "PUT /up HTTP/1.1\r\n" H "Content-Length: 7\r\n\r\nabc!def", "}}");
    g_assert_cmpint(raw_status(c), ==, 409);
    g_autofree char *d = ask(fd, "PUT /up HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nabc", "}");
    g_assert_cmpint(raw_status(d), ==, 200);
    close(fd);
}

static void test_broken_chunks(struct fixture *f, gconstpointer data)
{
    static const char *const bodies[] = {"x\r\nabc\r\n0\r\n\r\n", "-1\r\nabc\r\n0\r\n\r\n",
                                         "3\r\nabcd\r\n0\r\n\r\n",
                                         "10000000000000000\r\nabc\r\n0\r\n\r\n"};
    for (gsize i = 0; i < G_N_ELEMENTS(bodies); i++) {
        g_autofree char *text = g_strdup_printf(
            "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n%s", bodies[i]);
        g_autofree char *answer = raw_exchange(f->address, text, strlen(text));
        g_assert_true(raw_status(answer) == 400 || raw_status(answer) == 413);
    }
    g_assert_cmpint(g_atomic_int_get(&f->seen.handled), ==, 0);
}

static void test_slow_body(struct fixture *f, gconstpointer data)
{
    const int fd = raw_connect(f->address);
    const int64_t begin_ms = sp_time_monotonic_ms();
    raw_send_text(fd, "POST /echo HTTP/1.1\r\n" H "Content-Length: 900\r\n\r\n");
    g_autoptr(GString) answer = g_string_new(NULL);
    while (sp_time_monotonic_ms() - begin_ms < 5000) {
        raw_send(fd, "x", 1);
        if (raw_read_until(fd, answer, NULL, 20))
            break;
    }
    const int64_t took_ms = sp_time_monotonic_ms() - begin_ms;
    g_test_message("slow body closed after %" G_GINT64_FORMAT " ms", took_ms);
    g_assert_cmpint(took_ms, >=, 600);
    g_assert_cmpint(took_ms, <, 2500);
    close(fd);
}

static void test_data_is_freed(struct fixture *f, gconstpointer data)
{
    for (int i = 0; i < 10; i++) {
        const int fd = raw_connect(f->address);
        raw_send_text(fd, "POST /key HTTP/1.1\r\n" H
                          "Authorization: Bearer sk_good\r\nContent-Length: 50\r\n\r\nabc");
        close(fd); /* in the middle of the body */
    }
    const int64_t deadline_ms = sp_time_monotonic_ms() + 5000;
    while (g_atomic_int_get(&f->seen.freed) < 10 && sp_time_monotonic_ms() < deadline_ms)
        g_usleep(1000);
    g_assert_cmpint(g_atomic_int_get(&f->seen.freed), ==, 10);
    g_assert_cmpint(g_atomic_int_get(&f->seen.handled), ==, 0);
}

static void test_addresses(void)
{
    static const char *const bad[] = {
        "",      "127.0.0.1",       "127.0.0.1:", ":80", "::1:80", "localhost:80",
        "[::1]", "127.0.0.1:99999", "[]:80"};
    for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        struct sp_http_server *server = sp_http_server_start(
            &(struct sp_http_server_config){.address = bad[i], .routes = routes}, &error);
        if (server)
            g_error("%s was taken as an address", bad[i]);
        g_assert_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST);
    }
    g_autoptr(GError) error = NULL;
    const struct sp_http_server_config config = {.address = "127.0.0.1:0", .routes = routes};
    struct sp_http_server *one = sp_http_server_start(&config, &error);
    g_assert_no_error(error);
    const struct sp_http_server_config same = {.address = sp_http_server_address(one),
                                               .routes = routes};
    g_assert_null(sp_http_server_start(&same, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_autofree char *address = g_strdup(sp_http_server_address(one));
    sp_http_server_stop(one, 100);
    /* The address is free again at once. */
    const struct sp_http_server_config again = {.address = address, .routes = routes};
    g_clear_error(&error);
    one = sp_http_server_start(&again, &error);
    g_assert_no_error(error);
    sp_http_server_stop(one, 100);
}

#define ADD(path, test)                                                                            \
    g_test_add("/http_requests/" path, struct fixture, NULL, set_up, test, tear_down)

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    ADD("request_parts", test_request_parts);
    ADD("methods", test_methods);
    ADD("json_bodies", test_json_bodies);
    ADD("answers_of_handlers", test_answers_of_handlers);
    ADD("too_large", test_too_large);
    ADD("continue", test_continue);
    ADD("authorize_before_body", test_authorize_before_body);
    ADD("streamed_bodies", test_streamed_bodies);
    ADD("broken_chunks", test_broken_chunks);
    ADD("slow_body", test_slow_body);
    ADD("data_is_freed", test_data_is_freed);
    g_test_add_func("/http_requests/addresses", test_addresses);
    return g_test_run();
}
