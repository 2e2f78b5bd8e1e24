#include <glib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "model/session.h"

static json_t *parse(const char *text)
{
    json_t *value = sp_json_parse(text, strlen(text), NULL);
    g_assert_nonnull(value);
    return value;
}

static void test_spec(void)
{
    g_autoptr(json_t) body = parse("{\"command\":[\"a\",\"\"],\"cwd\":\"/x\",\"user\":\"u\","
                                   "\"grace\":\"5m\",\"stdin\":\"open\",\"overflow\":\"drop\"}");
    struct sp_session_request r;
    g_assert_true(sp_session_request_decode(body, &r, NULL));
    g_autoptr(json_t) spec = sp_session_spec(&r);
    g_autoptr(json_t) expected =
        parse("{\"command\":[\"a\",\"\"],\"cwd\":\"/x\",\"env\":{},\"user\":\"u\",\"timeout_ms\":0,"
              "\"grace_ms\":300000,\"stdin\":\"open\",\"overflow\":\"drop\"}");
    g_assert_true(json_equal(spec, expected));
    sp_session_request_clear(&r);
}

static void test_exec_is_narrower(void)
{
    static const char *const refused[] = {"stdin", "pty", "overflow", "detach"};
    struct sp_session_request r;
    for (size_t i = 0; i < G_N_ELEMENTS(refused); i++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *text = g_strdup_printf("{\"command\":[\"a\"],\"%s\":1}", refused[i]);
        g_autofree char *field = g_strconcat("/", refused[i], NULL);
        g_autoptr(json_t) body = parse(text);
        g_assert_false(sp_exec_request_decode(body, &r, &error));
        g_assert_cmpstr(sp_error_field(error), ==, field);
    }
    g_autoptr(json_t) body = parse("{\"command\":[\"a\"]}");
    g_assert_true(sp_exec_request_decode(body, &r, NULL));
    g_assert_cmpint(r.timeout_ms, ==, 600000);
    sp_session_request_clear(&r);
}

static void test_size_of_command(void)
{
    static const struct {
        size_t command, env;
        const char *field; /* NULL: it is accepted */
    } rows[] = {
        {61000 - 4, 0, NULL},
        {61000 - 3, 0, "/command"},
        {128 * 1024, 0, "/command"},
        {30000 - 4, 31000 - 4 - 2, NULL}, /* "A=" */
        {30000 - 4, 31000 - 4 - 1, "/env"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autofree char *command = g_strnfill(rows[i].command, 'x');
        g_autofree char *value = g_strnfill(rows[i].env, 'y');
        g_autoptr(json_t) body = json_pack("{s:[s]}", "command", command);
        if (rows[i].env)
            json_object_set_new(body, "env", json_pack("{s:s}", "A", value));
        g_autoptr(GError) error = NULL;
        struct sp_session_request r;
        bool taken = sp_session_request_decode(body, &r, &error);
        g_assert_cmpstr(error ? sp_error_field(error) : NULL, ==, rows[i].field);
        g_assert_cmpint(taken, ==, rows[i].field == NULL);
        if (taken)
            sp_session_request_clear(&r);
    }
}

static void test_signal(void)
{
    const char *name = NULL;
    g_autoptr(json_t) good = parse("{\"signal\":\"SIGTERM\"}");
    g_assert_true(sp_signal_request_decode(good, &name, NULL));
    g_assert_cmpstr(name, ==, "SIGTERM");
    static const char *const bad[] = {"{}", "{\"signal\":15}", "{\"signal\":\"TERM\"}"};
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(json_t) body = parse(bad[i]);
        g_assert_false(sp_signal_request_decode(body, &name, &error));
        g_assert_cmpstr(sp_error_field(error), ==, "/signal");
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/session/spec", test_spec);
    g_test_add_func("/session/exec_is_narrower", test_exec_is_narrower);
    g_test_add_func("/session/size_of_command", test_size_of_command);
    g_test_add_func("/session/signal", test_signal);
    return g_test_run();
}
