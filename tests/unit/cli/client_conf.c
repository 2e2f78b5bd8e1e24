#include <glib.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "cli/client_conf.h"

static void test_round_trip(void)
{
    g_autofree char *dir = g_dir_make_tmp("space-conf-XXXXXX", NULL);
    g_autofree char *path = g_build_filename(dir, "client.conf", NULL);
    struct sp_client_conf in = {.url = (char *)"http://127.0.0.1:1", .key = (char *)"sk_x"};
    struct sp_client_conf out = {0};
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_client_conf_save(path, &in, &error));
    struct stat st;
    g_assert_cmpint(stat(path, &st), ==, 0);
    g_assert_cmpint(st.st_mode & 07777, ==, 0600);
    g_assert_true(sp_client_conf_load(path, &out, &error));
    g_assert_cmpstr(out.url, ==, in.url);
    g_assert_cmpstr(out.key, ==, in.key);
    g_assert_null(out.data_url);
    sp_client_conf_clear(&out);
    g_unlink(path);
    g_assert_false(sp_client_conf_load(path, &out, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
    g_rmdir(dir);
}

static void test_forms(void)
{
    struct sp_client_conf out = {0};
    g_assert_true(
        sp_client_conf_parse("# a comment\r\n\n  url:  http://h:1 \r\nkey:sk_1\nfuture: x\n"
                             "data_url: http://h:2",
                             &out, NULL));
    g_assert_cmpstr(out.url, ==, "http://h:1");
    g_assert_cmpstr(out.key, ==, "sk_1");
    g_assert_cmpstr(out.data_url, ==, "http://h:2");
    sp_client_conf_clear(&out);
    static const char *const bad[] = {"", "url: x", "key: x", "url:\nkey: x", "url: x\nkey:\n"};
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        g_assert_false(sp_client_conf_parse(bad[i], &out, &error));
        g_assert_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST);
        g_assert_null(out.url);
    }
}

/* The key of a file is for that file's server alone. */
static void test_environment(void)
{
    struct sp_client_conf out = {0};
    g_autoptr(GError) error = NULL;
    g_setenv("SPACE_URL", "http://somewhere:1", TRUE);
    g_unsetenv("SPACE_KEY");
    g_unsetenv("SPACE_DATA_URL");
    g_assert_false(sp_client_conf_resolve(NULL, &out, &error));
    g_setenv("SPACE_KEY", "sk_env", TRUE);
    g_assert_true(sp_client_conf_resolve(NULL, &out, NULL));
    g_assert_cmpstr(out.url, ==, "http://somewhere:1");
    g_assert_cmpstr(out.key, ==, "sk_env");
    g_assert_null(out.data_url);
    sp_client_conf_clear(&out);
    g_clear_error(&error);
    g_assert_false(sp_client_conf_resolve("/nonexistent/state", &out, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAUTHENTICATED);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/client-conf/round-trip", test_round_trip);
    g_test_add_func("/client-conf/forms", test_forms);
    g_test_add_func("/client-conf/environment", test_environment);
    return g_test_run();
}
