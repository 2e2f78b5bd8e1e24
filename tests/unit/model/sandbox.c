#include <glib.h>
#include <string.h>

#include "base/error.h"
#include "model/sandbox.h"

static bool decode(const char *text, struct sp_sandbox_request *ret, GError **error)
{
    g_autoptr(json_t) body = sp_json_parse(text, strlen(text), NULL);
    g_assert_nonnull(body);
    return sp_sandbox_request_decode(body, ret, error);
}

#define SNAPSHOT "snp_00000000000000000000000000"

static void test_defaults(void)
{
    struct sp_sandbox_request r;
    g_assert_true(decode("{}", &r, NULL));
    g_assert_cmpstr(r.template_ref, ==, "seed:latest");
    g_assert_cmpfloat(r.resources.cpus, ==, 1);
    g_assert_cmpint(r.resources.memory_mb, ==, 512);
    g_assert_cmpint(r.resources.disk_mb, ==, 2048);
    g_assert_cmpint(r.resources.pids, ==, 128);
    g_assert_cmpint(r.isolation, ==, SP_ISOLATION_AUTO);
    g_assert_cmpint(r.on_idle, ==, SP_ON_IDLE_SUSPEND);
    g_assert_cmpint(r.idle_timeout_ms, ==, 6 * 3600 * 1000);
    g_assert_cmpint(r.max_lifetime_ms, ==, 0);
    g_assert_null(r.name);
    sp_sandbox_request_clear(&r);
}

static void test_all_fields(void)
{
    struct sp_sandbox_request r;
    g_assert_true(decode("{\"template\":\"data:v1.2\",\"isolation\":\"microvm\",\"untrusted\":true,"
                         "\"resources\":{\"cpus\":0.3333,\"memory_mb\":64,\"disk_mb\":1048576,"
                         "\"pids\":32768},\"env\":{\"_A\":\"b=c\"},\"metadata\":{\"a/b\":\"\"},"
                         "\"network\":{\"allow\":[],\"deny_private\":false},\"user\":\"1000:1000\","
                         "\"idle_timeout\":\"10s\",\"on_idle\":\"delete\",\"max_lifetime\":\"30d\","
                         "\"name\":\"a-1\"}",
                         &r, NULL));
    g_assert_cmpfloat(r.resources.cpus, ==, 0.333);
    g_assert_cmpstr(r.env[0], ==, "_A=b=c");
    g_assert_cmpint(r.on_idle, ==, SP_ON_IDLE_DELETE);
    g_assert_true(r.max_lifetime_set && r.untrusted && !r.deny_private);
    sp_sandbox_request_clear(&r);
}

/* The table of refused values with their fields is tests/e2e/test_api_requests.py; here the edges.
 */
static void test_edges(void)
{
    static const struct {
        const char *text, *field; /* NULL: accepted */
    } rows[] = {
        {"{\"resources\":{\"cpus\":0.1}}", NULL},
        {"{\"resources\":{\"cpus\":64}}", NULL},
        {"{\"resources\":{\"cpus\":64.01}}", "/resources/cpus"},
        {"{\"resources\":{\"memory_mb\":262144}}", NULL},
        {"{\"resources\":{\"memory_mb\":262145}}", "/resources/memory_mb"},
        {"{\"resources\":{\"pids\":8}}", NULL},
        {"{\"idle_timeout\":\"30d\"}", NULL},
        {"{\"idle_timeout\":\"9s\"}", "/idle_timeout"},
        {"{\"name\":\"0\"}", NULL},
        {"{\"name\":\"a_b\"}", "/name"},
        {"{\"template\":\"UPPER\"}", "/template"},
        {"{\"template\":\"a:\"}", "/template"},
        {"{\"template\":\":a\"}", "/template"},
        {"{\"template\":\"a:b:c\"}", "/template"},
        {"{\"user\":\"../x\"}", "/user"},
        {"{\"metadata\":{\"a~b\":\"\"}}", "/metadata/a~0b"},
        {"{\"env\":{\"A/B\":\"\"}}", "/env/A~1B"},
        {"{\"snapshot_id\":null}", NULL},
        {"{\"snapshot_id\":\"" SNAPSHOT "\"}", NULL},
        {"{\"snapshot_id\":\"" SNAPSHOT "\",\"env\":{\"A\":\"1\"},\"metadata\":{\"a\":\"b\"},"
         "\"name\":\"x\",\"user\":\"root\",\"idle_timeout\":\"1h\",\"on_idle\":\"none\","
         "\"max_lifetime\":\"1d\",\"network\":{\"allow\":[]}}",
         NULL},
        {"{\"snapshot_id\":\"snp_x\"}", "/snapshot_id"},
        {"{\"snapshot_id\":\"../../x\"}", "/snapshot_id"},
        {"{\"snapshot_id\":7}", "/snapshot_id"},
        {"{\"snapshot_id\":\"" SNAPSHOT "\",\"template\":\"seed\"}", "/template"},
        {"{\"snapshot_id\":\"" SNAPSHOT "\",\"isolation\":\"auto\"}", "/isolation"},
        {"{\"snapshot_id\":\"" SNAPSHOT "\",\"untrusted\":false}", "/untrusted"},
        {"{\"snapshot_id\":\"" SNAPSHOT "\",\"resources\":{}}", "/resources"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autoptr(GError) error = NULL;
        struct sp_sandbox_request r = {0};
        g_test_message("%s", rows[i].text);
        bool ok = decode(rows[i].text, &r, &error);
        g_assert_cmpint(ok, ==, rows[i].field == NULL);
        if (ok)
            sp_sandbox_request_clear(&r);
        else
            g_assert_cmpstr(sp_error_field(error), ==, rows[i].field);
    }
}

static void test_unsupported_yet(void)
{
    static const char *const texts[] = {"{\"network\":{\"allow\":[\"a.example\"]}}"};
    for (size_t i = 0; i < G_N_ELEMENTS(texts); i++) {
        g_autoptr(GError) error = NULL;
        struct sp_sandbox_request r;
        g_assert_false(decode(texts[i], &r, &error));
        g_assert_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/sandbox/defaults", test_defaults);
    g_test_add_func("/sandbox/all_fields", test_all_fields);
    g_test_add_func("/sandbox/edges", test_edges);
    g_test_add_func("/sandbox/unsupported_yet", test_unsupported_yet);
    return g_test_run();
}
