#include <glib.h>
#include <string.h>

#include "base/error.h"
#include "cli/options.h"

struct values {
    bool flag, kept;
    char *text;
    int64_t number;
    double fraction;
    char **list;
};

#define OFFSET(member) offsetof(struct values, member)
static const struct sp_option table[] = {
    {"flag", 'f', SP_OPTION_FLAG, OFFSET(flag), NULL, "", 0},
    {"rm", 0, SP_OPTION_NEGATED, OFFSET(kept), NULL, "", 0},
    {"text", 't', SP_OPTION_STRING, OFFSET(text), "TEXT", "", 0},
    {"number", 'n', SP_OPTION_INT, OFFSET(number), "N", "", 3},
    {"fraction", 0, SP_OPTION_NUMBER, OFFSET(fraction), "N", "", 0},
    {"list", 'l', SP_OPTION_LIST, OFFSET(list), "X", "", 0},
    {0},
};

static bool parse(struct values *out, char ***ret_operands, bool stop, const char *line)
{
    g_auto(GStrv) argv = g_strsplit(line, " ", -1);
    g_autoptr(GError) error = NULL;
    int argc = *line ? (int)g_strv_length(argv) : 0;
    bool ok = sp_options_parse(table, out, argc, argv, stop, ret_operands, &error);
    g_assert_true(ok || g_error_matches(error, SP_ERROR, SP_ERROR_INVALID_REQUEST));
    return ok;
}

static void test_kinds(void)
{
    struct values v = {0};
    g_auto(GStrv) operands = NULL;
    g_assert_true(parse(&v, &operands, false,
                        "-f --text a --number=3 one --fraction 0.5 -l x --list=y=z two --text=b"));
    g_assert_true(v.flag);
    g_assert_cmpstr(v.text, ==, "b");
    g_assert_cmpint(v.number, ==, 3);
    g_assert_cmpfloat(v.fraction, ==, 0.5);
    g_assert_cmpuint(g_strv_length(v.list), ==, 2);
    g_assert_cmpstr(v.list[1], ==, "y=z");
    g_assert_cmpuint(g_strv_length(operands), ==, 2);
    g_assert_cmpstr(operands[1], ==, "two");
    sp_options_clear(table, &v);
    g_assert_null(v.text);
}

static void test_letters(void)
{
    struct values v = {0};
    g_auto(GStrv) operands = NULL;
    g_assert_true(parse(&v, &operands, false, "-ftabc -n 4"));
    g_assert_true(v.flag);
    g_assert_cmpstr(v.text, ==, "abc");
    g_assert_cmpint(v.number, ==, 4);
    sp_options_clear(table, &v);
}

static void test_flags_have_values(void)
{
    struct values v = {0};
    g_auto(GStrv) operands = NULL;
    g_assert_true(parse(&v, &operands, false, "--flag=true --flag=false --rm=false"));
    g_assert_false(v.flag);
    g_assert_true(v.kept);
    g_clear_pointer(&operands, g_strfreev);
    g_assert_true(parse(&v, &operands, false, "--rm"));
    g_assert_false(v.kept);
}

static void test_the_commands_own_options(void)
{
    struct values v = {0};
    g_auto(GStrv) operands = NULL;
    g_assert_true(parse(&v, &operands, true, "-f ls --text -- -l"));
    g_assert_cmpuint(g_strv_length(operands), ==, 4);
    g_assert_null(v.text);
    g_clear_pointer(&operands, g_strfreev);
    g_assert_true(parse(&v, &operands, true, "-- --text x"));
    g_assert_cmpstr(operands[0], ==, "--text");
    g_clear_pointer(&operands, g_strfreev);
    g_assert_true(parse(&v, &operands, false, "a - -- -f"));
    g_assert_cmpuint(g_strv_length(operands), ==, 3);
    g_assert_cmpstr(operands[2], ==, "-f");
}

static void test_refusals(void)
{
    static const char *const bad[] = {"--nope",         "-x",
                                      "--text",         "-t",
                                      "--number=2",     "--number=a",
                                      "--number=",      "--number=9999999999999999999",
                                      "--fraction=0",   "--fraction=-1",
                                      "--fraction=inf", "--fraction=1x",
                                      "--flag=maybe",   "--fla",
                                      "--flags",        "-fx"};
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        struct values v = {0};
        char **operands = NULL;
        g_assert_false(parse(&v, &operands, false, bad[i]));
        g_assert_null(operands);
        sp_options_clear(table, &v);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/options/kinds", test_kinds);
    g_test_add_func("/options/letters", test_letters);
    g_test_add_func("/options/flags-have-values", test_flags_have_values);
    g_test_add_func("/options/the-commands-own-options", test_the_commands_own_options);
    g_test_add_func("/options/refusals", test_refusals);
    return g_test_run();
}
