#include <glib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"

struct inner {
    double cpus;
};
struct sample {
    char *name;
    int colour;
    bool on, name_present;
    int64_t count, wait_ms;
    char **argv;
    char **env;
    struct inner inner;
};
static const char *const colours[] = {"red", "green", NULL};
static const struct sp_json_field inner_table[] = {
    {"cpus", SP_JSON_NUMBER, offsetof(struct inner, cpus), 0.1, 64},
    {NULL},
};
static const struct sp_json_field table[] = {
    {"name", SP_JSON_STRING, offsetof(struct sample, name), 1, 8, .required = true,
     .present_offset = offsetof(struct sample, name_present)},
    {"colour", SP_JSON_ENUM, offsetof(struct sample, colour), .choices = colours},
    {"on", SP_JSON_BOOL, offsetof(struct sample, on)},
    {"count", SP_JSON_INT, offsetof(struct sample, count), 1, 10},
    {"wait", SP_JSON_DURATION, offsetof(struct sample, wait_ms), 1000, 60000},
    {"argv", SP_JSON_STRING_LIST, offsetof(struct sample, argv), 1, 3},
    {"env", SP_JSON_STRING_MAP, offsetof(struct sample, env), 0, 2},
    {"inner", SP_JSON_OBJECT, offsetof(struct sample, inner), .sub = inner_table},
    {NULL},
};

static void test_decode_all_kinds(void)
{
    const char text[] = "{\"name\":\"x\",\"colour\":\"green\",\"on\":true,\"count\":10,\"wait\":"
                        "\"1m\",\"argv\":[\"a\",\"b\"],\"env\":{\"A\":\"1\"},\"inner\":{\"cpus\":"
                        "0.5}}";
    g_autoptr(GError) error = NULL;
    g_autoptr(json_t) root = sp_json_parse(text, strlen(text), &error);
    g_assert_no_error(error);
    struct sample s = {0};
    g_assert_true(sp_json_decode(root, table, &s, &error));
    g_assert_no_error(error);
    g_assert_cmpstr(s.name, ==, "x");
    g_assert_true(s.name_present);
    g_assert_cmpint(s.colour, ==, 1);
    g_assert_true(s.on);
    g_assert_cmpint(s.count, ==, 10);
    g_assert_cmpint(s.wait_ms, ==, 60000);
    g_assert_cmpstr(s.argv[1], ==, "b");
    g_assert_cmpstr(s.env[0], ==, "A=1");
    g_assert_cmpfloat(s.inner.cpus, ==, 0.5);
    sp_json_clear(table, &s);
    g_assert_null(s.name);
    g_assert_null(s.argv);
}

static void test_refusals_name_the_field(void)
{
    static const struct {
        const char *text, *field;
    } rows[] = {
        {"[]", ""},
        {"{}", "/name"},
        {"{\"name\":null}", "/name"},
        {"{\"name\":1}", "/name"},
        {"{\"name\":\"\"}", "/name"},
        {"{\"name\":\"123456789\"}", "/name"},
        {"{\"name\":\"a\\u0000b\"}", "/name"},
        {"{\"name\":\"x\",\"nope\":1}", "/nope"},
        {"{\"name\":\"x\",\"a/b~c\":1}", "/a~1b~0c"},
        {"{\"name\":\"x\",\"colour\":\"blue\"}", "/colour"},
        {"{\"name\":\"x\",\"colour\":7}", "/colour"},
        {"{\"name\":\"x\",\"on\":1}", "/on"},
        {"{\"name\":\"x\",\"count\":1.5}", "/count"},
        {"{\"name\":\"x\",\"count\":0}", "/count"},
        {"{\"name\":\"x\",\"count\":11}", "/count"},
        {"{\"name\":\"x\",\"wait\":\"1\"}", "/wait"},
        {"{\"name\":\"x\",\"wait\":\"2m\"}", "/wait"},
        {"{\"name\":\"x\",\"argv\":[]}", "/argv"},
        {"{\"name\":\"x\",\"argv\":[\"a\",2]}", "/argv/1"},
        {"{\"name\":\"x\",\"argv\":\"a\"}", "/argv"},
        {"{\"name\":\"x\",\"env\":{\"A\":1}}", "/env/A"},
        {"{\"name\":\"x\",\"env\":{\"A=B\":\"1\"}}", "/env/A=B"},
        {"{\"name\":\"x\",\"inner\":{\"cpus\":0}}", "/inner/cpus"},
        {"{\"name\":\"x\",\"inner\":{\"cpu\":1}}", "/inner/cpu"},
        {"{\"name\":\"x\",\"inner\":1}", "/inner"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(json_t) root = sp_json_parse(rows[i].text, strlen(rows[i].text), &error);
        g_assert_no_error(error);
        struct sample s = {0};
        g_assert_false(sp_json_decode(root, table, &s, &error));
        g_assert_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST);
        g_assert_cmpstr(sp_error_field(error), ==, rows[i].field);
        sp_json_clear(table, &s);
    }
}

static void test_parse_refuses(void)
{
    g_autofree char *deep = g_strnfill(100, '[');
    const char *bad[] = {
        "",         "{",  "{\"a\":1,\"a\":2}",
        "\"\xff\"", deep, "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"};
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        g_assert_null(sp_json_parse(bad[i], strlen(bad[i]), &error));
        g_assert_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/json/decode_all_kinds", test_decode_all_kinds);
    g_test_add_func("/json/refusals_name_the_field", test_refusals_name_the_field);
    g_test_add_func("/json/parse_refuses", test_parse_refuses);
    return g_test_run();
}
