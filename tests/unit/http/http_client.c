/* The client against our own server. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/time.h"
#include "http/client.h"
#include "http/server.h"

struct counts {
    gint handled;
    int64_t cancel_at_ms;
};

static void on_echo(struct sp_http_request *request, void *user)
{
    struct counts *counts = user;
    g_atomic_int_inc(&counts->handled);
    g_autoptr(GBytes) body = g_bytes_ref(sp_http_body(request));
    gsize len = 0;
    const char *text = g_bytes_get_data(body, &len);
    sp_http_respond_json(
        request, 200,
        json_pack("{s:s, s:s#, s:s*, s:s*, s:s*, s:s*}", "method", sp_http_method(request), "body",
                  text, (int)len, "type", sp_http_header(request, "Content-Type"), "length",
                  sp_http_header(request, "Content-Length"), "bearer", sp_http_bearer(request),
                  "expect", sp_http_header(request, "Expect")));
}

static void on_fail(struct sp_http_request *request, void *user)
{
    g_autoptr(GError) error = NULL;
    sp_error_set_field(&error, "/resources/cpus", "too many");
    sp_http_respond_error(request, error);
}

static void on_plain(struct sp_http_request *request, void *user)
{
    const int status = (int)g_ascii_strtoull(sp_http_query(request, "status"), NULL, 10);
    if (status == 302)
        sp_http_add_header(request, "Location", "/echo");
    sp_http_respond_bytes(request, status, "text/plain", "plain", status == 204 ? 0 : 5);
}

static void on_slow(struct sp_http_request *request, void *user)
{
    while (!sp_http_client_gone(request) &&
           !sp_http_server_stopping(sp_http_request_server(request)))
        g_usleep(5000);
    sp_http_respond_json(request, 200, json_object());
}

static bool on_piece(struct sp_http_request *request, const char *bytes, size_t len, GError **error)
{
    guint64 *sum = sp_http_data(request);
    if (!sum) {
        sum = g_new0(guint64, 1);
        sp_http_set_data(request, sum, g_free);
    }
    *sum += len;
    return true;
}

static void on_uploaded(struct sp_http_request *request, void *user)
{
    const guint64 *sum = sp_http_data(request);
    sp_http_respond_json(request, 201, json_pack("{s:I}", "bytes", (json_int_t)(sum ? *sum : 0)));
}

static bool refuse(struct sp_http_request *request, void *user, GError **error)
{
    g_set_error_literal(error, SP_ERROR, SP_ERROR_PERMISSION_DENIED, "not you");
    return false;
}

static ssize_t endless(void *source, char *buffer, size_t max)
{
    memset(buffer, 'e', max);
    return (ssize_t)max;
}

static void on_endless(struct sp_http_request *request, void *user)
{
    sp_http_respond_stream(request, 200, "text/plain", endless, NULL, NULL);
}

static const struct sp_http_route routes[] = {
    {.method = "GET", .pattern = "/echo", .handler = on_echo, .max_body_bytes = 1000},
    {.method = "POST", .pattern = "/echo", .handler = on_echo, .max_body_bytes = 3u << 20},
    {.method = "PATCH", .pattern = "/echo", .handler = on_echo, .max_body_bytes = 1000},
    {.method = "DELETE", .pattern = "/echo", .handler = on_echo, .max_body_bytes = 1000},
    {.method = "POST", .pattern = "/fail", .handler = on_fail, .max_body_bytes = 1000},
    {.method = "GET", .pattern = "/plain", .handler = on_plain},
    {.method = "GET", .pattern = "/slow", .handler = on_slow},
    {.method = "GET", .pattern = "/endless", .handler = on_endless},
    {.method = "PUT", .pattern = "/up", .handler = on_uploaded, .on_body = on_piece},
    {.method = "PUT",
     .pattern = "/refused",
     .handler = on_uploaded,
     .on_body = on_piece,
     .authorize = refuse},
    {NULL},
};

struct fixture {
    struct counts counts;
    struct sp_http_server *server;
    struct sp_http_client *client;
};

static void set_up(struct fixture *f, gconstpointer data)
{
    g_autoptr(GError) error = NULL;
    f->server = sp_http_server_start(&(struct sp_http_server_config){.address = "127.0.0.1:0",
                                                                     .routes = routes,
                                                                     .user = &f->counts,
                                                                     .idle_timeout_ms = 1000},
                                     &error);
    g_assert_no_error(error);
    g_autofree char *url = g_strconcat("http://", sp_http_server_address(f->server), "/", NULL);
    f->client = sp_http_client_new(url, "sk_secret");
}

static void tear_down(struct fixture *f, gconstpointer data)
{
    sp_http_client_free(f->client);
    sp_http_server_stop(f->server, 2000);
}

static const char *member(json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

static void test_methods(struct fixture *f, gconstpointer data)
{
    static const struct {
        const char *method;
        bool body;
    } rows[] = {{"GET", false}, {"DELETE", false}, {"POST", false},  {"PATCH", false},
                {"POST", true}, {"PATCH", true},   {"DELETE", true}, {"GET", true}};
    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(json_t) request = rows[i].body ? json_pack("{s:i}", "a", 1) : NULL;
        int status = 0;
        g_autoptr(json_t) answer =
            sp_http_call_json(f->client, rows[i].method, "/echo", request, 5000, &status, &error);
        g_assert_no_error(error);
        g_assert_cmpint(status, ==, 200);
        g_assert_cmpstr(member(answer, "method"), ==, rows[i].method);
        g_assert_cmpstr(member(answer, "body"), ==, rows[i].body ? "{\"a\":1}" : "");
        g_assert_cmpstr(member(answer, "type"), ==, rows[i].body ? "application/json" : NULL);
        g_assert_cmpstr(member(answer, "bearer"), ==, "sk_secret");
        g_assert_null(member(answer, "expect"));
    }
    /* A body for which libcurl would ask first. */
    g_autofree char *big = g_strnfill(2 << 20, 'b');
    const struct sp_http_call call = {.method = "POST",
                                      .path = "/echo",
                                      .body = big,
                                      .body_len = 2 << 20,
                                      .headers =
                                          (const char *const[]){"Content-Type: text/x", NULL},
                                      .timeout_ms = 5000};
    struct sp_http_answer answer = {0};
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_http_call(f->client, &call, &answer, &error));
    g_assert_no_error(error);
    g_assert_cmpint(answer.status, ==, 200);
    g_assert_cmpuint(g_bytes_get_size(answer.body), >, 2 << 20);
    g_assert_nonnull(memmem(g_bytes_get_data(answer.body, NULL), g_bytes_get_size(answer.body),
                            "\"text/x\"", 8));
    sp_http_answer_clear(&answer);
}

static void test_errors(struct fixture *f, gconstpointer data)
{
    g_autoptr(GError) error = NULL;
    int status = -1;
    g_assert_null(sp_http_call_json(f->client, "POST", "/fail", NULL, 5000, &status, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST);
    g_assert_cmpstr(error->message, ==, "too many");
    g_assert_cmpstr(sp_error_field(error), ==, "/resources/cpus");
    g_assert_cmpint(status, ==, -1);
    static const struct {
        const char *path;
        enum sp_error_code code;
    } rows[] = {
        {"/nope", SP_ERROR_NOT_FOUND},
        {"/plain?status=200", SP_ERROR_INTERNAL}, /* no JSON */
        {"/plain?status=302", SP_ERROR_INTERNAL}, /* not followed */
        {"/plain?status=400", SP_ERROR_INVALID_REQUEST},
        {"/plain?status=418", SP_ERROR_INVALID_REQUEST},
        {"/plain?status=401", SP_ERROR_UNAUTHENTICATED},
        {"/plain?status=413", SP_ERROR_PAYLOAD_TOO_LARGE},
        {"/plain?status=500", SP_ERROR_INTERNAL},
        {"/plain?status=503", SP_ERROR_UNAVAILABLE},
        {"echo", SP_ERROR_INVALID_REQUEST},
        {"/a b", SP_ERROR_INVALID_REQUEST},
        {"/a\r\nX: y", SP_ERROR_INVALID_REQUEST},
        {"/a#b", SP_ERROR_INVALID_REQUEST},
    };
    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_clear_error(&error);
        g_assert_null(sp_http_call_json(f->client, "GET", rows[i].path, NULL, 5000, NULL, &error));
        g_assert_error(error, SP_ERROR, (int)rows[i].code);
    }
    g_assert_cmpint(g_atomic_int_get(&f->counts.handled), ==, 0);
    g_clear_error(&error);
    g_autoptr(json_t) empty =
        sp_http_call_json(f->client, "GET", "/plain?status=204", NULL, 5000, &status, &error);
    g_assert_no_error(error);
    g_assert_cmpint(status, ==, 204);
    g_assert_cmpuint(json_object_size(empty), ==, 0);
}

static void test_no_injection(struct fixture *f, gconstpointer data)
{
    const struct sp_http_call call = {
        .method = "GET", .path = "/echo", .headers = (const char *const[]){"X: a\r\nY: b", NULL}};
    struct sp_http_answer answer = {0};
    g_autoptr(GError) error = NULL;
    g_assert_false(sp_http_call(f->client, &call, &answer, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST);
    g_assert_cmpint(g_atomic_int_get(&f->counts.handled), ==, 0);
}

static void test_timeout(struct fixture *f, gconstpointer data)
{
    g_autoptr(GError) error = NULL;
    const int64_t begin_ms = sp_time_monotonic_ms();
    g_assert_null(sp_http_call_json(f->client, "GET", "/slow", NULL, 300, NULL, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_assert_cmpint(sp_time_monotonic_ms() - begin_ms, <, 1500);
}

static bool cancelled(void *user)
{
    const struct counts *counts = user;
    return sp_time_monotonic_ms() >= counts->cancel_at_ms;
}

static void test_cancel(struct fixture *f, gconstpointer data)
{
    const struct sp_http_call call = {
        .method = "GET", .path = "/slow", .cancelled = cancelled, .user = &f->counts};
    struct sp_http_answer answer = {0};
    g_autoptr(GError) error = NULL;
    f->counts.cancel_at_ms = sp_time_monotonic_ms() + 300;
    g_assert_false(sp_http_call(f->client, &call, &answer, &error));
    const int64_t late_ms = sp_time_monotonic_ms() - f->counts.cancel_at_ms;
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_assert_nonnull(strstr(error->message, "cancelled"));
    g_test_message("cancelled %" G_GINT64_FORMAT " ms late", late_ms);
    g_assert_cmpint(late_ms, >=, 0);
    g_assert_cmpint(late_ms, <, 2500);
}

static void test_nobody_there(struct fixture *f, gconstpointer data)
{
    /* The address of a server that has gone. */
    g_autoptr(GError) error = NULL;
    struct sp_http_server *gone = sp_http_server_start(
        &(struct sp_http_server_config){.address = "127.0.0.1:0", .routes = routes}, &error);
    g_assert_no_error(error);
    g_autofree char *url = g_strconcat("http://", sp_http_server_address(gone), NULL);
    sp_http_server_stop(gone, 100);
    struct sp_http_client *client = sp_http_client_new(url, NULL);
    g_assert_null(sp_http_call_json(client, "GET", "/echo", NULL, 5000, NULL, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    sp_http_client_free(client);
    client = sp_http_client_new("file:///etc", NULL);
    g_clear_error(&error);
    g_assert_null(sp_http_call_json(client, "GET", "/hostname", NULL, 5000, NULL, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    sp_http_client_free(client);
}

static void test_connection_that_was_closed(struct fixture *f, gconstpointer data)
{
    for (int i = 0; i < 2; i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(json_t) request = json_pack("{s:i}", "n", i);
        g_autoptr(json_t) answer =
            sp_http_call_json(f->client, "POST", "/echo", request, 5000, NULL, &error);
        g_assert_no_error(error);
        g_assert_nonnull(answer);
        if (i == 0)
            g_usleep(2500 * 1000); /* the server's idle time is 1 s */
    }
}

/* --- streams */
struct flow {
    guint64 left;
    guint64 abort_at;
    guint64 got;
};

static ssize_t give(void *user, char *buffer, size_t max)
{
    struct flow *flow = user;
    const size_t n = (size_t)MIN(flow->left, max);
    if (flow->abort_at && flow->left < flow->abort_at)
        return -1;
    memset(buffer, 'u', n);
    flow->left -= n;
    return (ssize_t)n;
}

static bool take(void *user, const char *bytes, size_t len)
{
    struct flow *flow = user;
    flow->got += len;
    return flow->got < 5000000;
}

static void test_upload(struct fixture *f, gconstpointer data)
{
    struct flow flow = {.left = 5000000};
    struct sp_http_call call = {
        .method = "PUT", .path = "/up", .on_upload = give, .user = &flow, .timeout_ms = 10000};
    struct sp_http_answer answer = {0};
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_http_call(f->client, &call, &answer, &error));
    g_assert_no_error(error);
    g_assert_cmpint(answer.status, ==, 201);
    g_assert_cmpmem(g_bytes_get_data(answer.body, NULL), g_bytes_get_size(answer.body),
                    "{\"bytes\":5000000}", 17);
    sp_http_answer_clear(&answer);
    /* Refused before it begins. */
    flow = (struct flow){.left = 50000000};
    call.path = "/refused";
    g_assert_true(sp_http_call(f->client, &call, &answer, &error));
    g_assert_no_error(error);
    g_assert_cmpint(answer.status, ==, 403);
    sp_http_answer_to_error(&answer, &error);
    g_assert_error(error, SP_ERROR, SP_ERROR_PERMISSION_DENIED);
    g_assert_cmpuint(flow.left, ==, 50000000);
    sp_http_answer_clear(&answer);
    /* Aborted by its giver. */
    flow = (struct flow){.left = 5000000, .abort_at = 1000000};
    call.path = "/up";
    g_clear_error(&error);
    g_assert_false(sp_http_call(f->client, &call, &answer, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
}

static void test_download(struct fixture *f, gconstpointer data)
{
    struct flow flow = {0};
    struct sp_http_call call = {
        .method = "GET", .path = "/endless", .on_data = take, .user = &flow};
    struct sp_http_answer answer = {0};
    g_autoptr(GError) error = NULL;
    g_assert_false(sp_http_call(f->client, &call, &answer, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_assert_cmpuint(flow.got, >=, 5000000);
    /* An error answer is collected, not streamed. */
    flow.got = 0;
    call.path = "/nope";
    g_clear_error(&error);
    g_assert_true(sp_http_call(f->client, &call, &answer, &error));
    g_assert_no_error(error);
    g_assert_cmpint(answer.status, ==, 404);
    g_assert_cmpuint(flow.got, ==, 0);
    sp_http_answer_to_error(&answer, &error);
    g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
    sp_http_answer_clear(&answer);
    /* Without a reader there is a bound. */
    call = (struct sp_http_call){.method = "GET", .path = "/endless", .timeout_ms = 30000};
    g_clear_error(&error);
    g_assert_false(sp_http_call(f->client, &call, &answer, &error));
    g_assert_nonnull(strstr(error->message, "64 MiB"));
}

/* code, message and field of an answer arrive as they were sent, whatever the code. */
static void test_answer_to_error(struct fixture *f, gconstpointer data)
{
    static const struct {
        int status;
        const char *body;
        enum sp_error_code code;
        const char *message, *field;
    } rows[] = {
        {400, "{\"error\":{\"code\":\"invalid_request\",\"message\":\"m %s\",\"field\":\"/a\"}}",
         SP_ERROR_INVALID_REQUEST, "m %s", "/a"},
        {409, "{\"error\":{\"code\":\"unsupported\",\"message\":\"m\",\"field\":\"/memory\"}}",
         SP_ERROR_UNSUPPORTED, "m", "/memory"},
        {409, "{\"error\":{\"code\":\"failed_precondition\",\"message\":\"m\"}}",
         SP_ERROR_FAILED_PRECONDITION, "m", NULL},
        {409, "{\"error\":{\"code\":\"a new one\",\"message\":\"m\",\"field\":7}}",
         SP_ERROR_CONFLICT, "m", NULL},
        {502, "<html>", SP_ERROR_UNAVAILABLE, "the server answered 502", NULL},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct sp_http_answer answer = {.status = rows[i].status};
        g_autoptr(GError) error = NULL;
        answer.body = g_bytes_new_static(rows[i].body, strlen(rows[i].body));
        sp_http_answer_to_error(&answer, &error);
        g_assert_error(error, SP_ERROR, (int)rows[i].code);
        g_assert_cmpstr(error->message, ==, rows[i].message);
        g_assert_cmpstr(sp_error_field(error), ==, rows[i].field);
        g_bytes_unref(answer.body);
    }
}

#define ADD(path, test)                                                                            \
    g_test_add("/http_client/" path, struct fixture, NULL, set_up, test, tear_down)

int main(int argc, char **argv)
{
    /* Must have no effect: nobody listens there. */
    g_setenv("http_proxy", "http://127.0.0.1:1", TRUE);
    g_setenv("all_proxy", "http://127.0.0.1:1", TRUE);
    g_test_init(&argc, &argv, NULL);
    ADD("methods", test_methods);
    ADD("errors", test_errors);
    ADD("no_injection", test_no_injection);
    ADD("timeout", test_timeout);
    ADD("cancel", test_cancel);
    ADD("nobody_there", test_nobody_there);
    ADD("connection_that_was_closed", test_connection_that_was_closed);
    ADD("upload", test_upload);
    ADD("download", test_download);
    ADD("answer_to_error", test_answer_to_error);
    return g_test_run();
}
