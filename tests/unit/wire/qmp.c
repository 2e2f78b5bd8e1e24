/* wire/qmp: a recorded conversation, and what must be refused. */
#include <glib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "wire/qmp.h"

/* Every line of the server parses to the one kind that it looks like. */
static void check_server_line(const char *line)
{
    struct sp_qmp_message m;
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_qmp_parse(line, strlen(line), &m, &error));
    g_assert_no_error(error);
    if (strstr(line, "\"QMP\"")) {
        g_assert_cmpint(m.kind, ==, SP_QMP_GREETING);
        g_assert_cmpstr(m.name, ==, "7.2.22 Debian 1:7.2+dfsg-7+deb12u18+b3");
    } else if (strstr(line, "\"event\"")) {
        g_assert_cmpint(m.kind, ==, SP_QMP_EVENT);
        g_assert_cmpint(m.data != NULL, ==, strstr(line, "\"data\"") != NULL);
        g_assert_false(m.has_id);
    } else if (strstr(line, "\"error\"")) {
        g_assert_cmpint(m.kind, ==, SP_QMP_FAILURE);
        g_assert_nonnull(m.text);
        g_assert_cmpint(m.has_id, ==, strstr(line, "\"id\"") != NULL);
    } else {
        g_assert_cmpint(m.kind, ==, SP_QMP_RETURN);
        g_assert_true(m.has_id);
        g_assert_cmpint(m.id, >, 0);
    }
    sp_qmp_message_clear(&m);
}

/* Every line of the client is what sp_qmp_command() makes. */
static void check_client_line(const char *line)
{
    g_autoptr(json_t) value = sp_json_parse(line, strlen(line), NULL);
    json_t *arguments = json_object_get(value, "arguments");
    g_autofree char *made =
        sp_qmp_command(json_string_value(json_object_get(value, "execute")), json_incref(arguments),
                       json_integer_value(json_object_get(value, "id")));
    g_autofree char *wanted = g_strconcat(line, "\n", NULL);
    g_assert_cmpstr(made, ==, wanted);
}

static void test_conversation(void)
{
    g_autofree char *path =
        g_build_filename(g_getenv("SPACE_DATA_DIR"), "qmp_conversation.txt", NULL);
    g_autofree char *text = NULL;
    g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    unsigned seen = 0;
    for (char **line = lines; *line; line++) {
        if (g_str_has_prefix(*line, "S "))
            check_server_line(*line + 2);
        else if (g_str_has_prefix(*line, "C "))
            check_client_line(*line + 2);
        else
            continue;
        seen++;
    }
    g_assert_cmpuint(seen, >, 30);
}

static void test_refused(void)
{
    static const char *const bad[] = {
        "",
        "{}",
        "[]",
        "null",
        "{\"return\":{},\"error\":{\"class\":\"a\",\"desc\":\"b\"}}",
        "{\"return\":{}",
        "{\"return\":{},\"return\":{}}",
        "{\"event\":3}",
        "{\"event\":\"STOP\",\"data\":[]}",
        "{\"error\":{\"class\":\"a\"}}",
        "{\"error\":\"no\"}",
        "{\"QMP\":{}}",
        "{\"QMP\":{\"version\":{\"qemu\":{\"micro\":1,\"minor\":\"2\",\"major\":7}}}}",
        "{\"timestamp\":{\"seconds\":1}}",
        "\xff\xfe{}",
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        struct sp_qmp_message m = {.id = 77};
        g_autoptr(GError) error = NULL;
        g_assert_false(sp_qmp_parse(bad[i], strlen(bad[i]), &m, &error));
        g_assert_error(error, SP_ERROR, SP_ERROR_INTERNAL);
        g_assert_cmpint(m.id, ==, 77);
    }
    g_autofree char *deep = g_malloc0(20000);
    memset(deep, '[', 10000);
    memset(deep + 10000, ']', 9999);
    struct sp_qmp_message m;
    g_assert_false(sp_qmp_parse(deep, 19999, &m, NULL));
    g_autofree char *long_line = g_malloc(SP_QMP_MAX_LINE + 1);
    memset(long_line, ' ', SP_QMP_MAX_LINE + 1);
    g_assert_false(sp_qmp_parse(long_line, SP_QMP_MAX_LINE + 1, &m, NULL));
}

static void test_lines(void)
{
    g_assert_cmpuint(sp_qmp_line_length("", 0), ==, 0);
    g_assert_cmpuint(sp_qmp_line_length("abc", 3), ==, 0);
    g_assert_cmpuint(sp_qmp_line_length("\nabc", 4), ==, 1);
    g_assert_cmpuint(sp_qmp_line_length("ab\r\nc\n", 6), ==, 4);
}

static void test_ids(void)
{
    struct sp_qmp_message m;
    const char *text_id = "{\"return\":[],\"id\":\"x\"}\r\n";
    g_assert_true(sp_qmp_parse(text_id, strlen(text_id), &m, NULL));
    g_assert_false(m.has_id);
    sp_qmp_message_clear(&m);
    g_autofree char *plain = sp_qmp_command("stop", NULL, 5);
    g_assert_cmpstr(plain, ==, "{\"execute\":\"stop\",\"id\":5}\n");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/wire/qmp/conversation", test_conversation);
    g_test_add_func("/wire/qmp/refused", test_refused);
    g_test_add_func("/wire/qmp/lines", test_lines);
    g_test_add_func("/wire/qmp/ids", test_ids);
    return g_test_run();
}
