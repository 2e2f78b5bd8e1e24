#include <glib.h>
#include <string.h>

#include "base/ids.h"
#include "base/time.h"

static void test_ids(void)
{
    char a[SP_ID_MAX], b[SP_ID_MAX];
    sp_id_new("sbx", a);
    sp_id_new("sbx", b);
    g_assert_cmpstr(a, !=, b);
    g_assert_true(sp_id_valid(a, "sbx"));
    g_assert_false(sp_id_valid(a, "op"));
    g_assert_cmpint(strncmp(a, b, 8), ==, 0); /* the time stands first */
    g_assert_false(sp_id_valid("sbx_../../../../../../../etc/pa", "sbx"));
    g_assert_false(sp_id_valid("sbx_", "sbx"));
    g_assert_false(sp_id_valid("sbx_0123456789abcdefghjkmnpqrsU", "sbx"));
}

static void test_secrets(void)
{
    char s[SP_SECRET_MAX], h[SP_HASH_HEX], g[SP_HASH_HEX];
    sp_secret_new("sk", s);
    g_assert_cmpint(strlen(s), ==, 3 + 43);
    g_assert_true(g_str_has_prefix(s, "sk_"));
    sp_secret_hash(s, h);
    sp_secret_hash("sk_other", g);
    g_assert_true(sp_hash_equal(h, h));
    g_assert_false(sp_hash_equal(h, g));
}

static void test_durations(void)
{
    static const struct {
        const char *text;
        int64_t ms;
    } good[] = {{"0s", 0},       {"250ms", 250},   {"30s", 30000},
                {"10m", 600000}, {"6h", 21600000}, {"2d", 172800000}};
    static const char *const bad[] = {"", "s", "1", "1.5s", "-1s", " 1s", "1s ", "1w", "99999d"};
    char text[SP_TIME_TEXT];
    for (size_t i = 0; i < G_N_ELEMENTS(good); i++) {
        int64_t ms = -1;
        g_assert_true(sp_duration_parse(good[i].text, &ms));
        g_assert_cmpint(ms, ==, good[i].ms);
        sp_duration_format(ms, text);
        g_assert_cmpstr(text, ==, good[i].text);
    }
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        int64_t ms = 7;
        g_assert_false(sp_duration_parse(bad[i], &ms));
        g_assert_cmpint(ms, ==, 7);
    }
    sp_duration_format(86400000, text);
    g_assert_cmpstr(text, ==, "24h");
}

static void test_time_format(void)
{
    char text[SP_TIME_TEXT];
    sp_time_format(INT64_C(1700000000123), text);
    g_assert_cmpstr(text, ==, "2023-11-14T22:13:20.123Z");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/ids/ids", test_ids);
    g_test_add_func("/ids/secrets", test_secrets);
    g_test_add_func("/time/durations", test_durations);
    g_test_add_func("/time/format", test_time_format);
    return g_test_run();
}
