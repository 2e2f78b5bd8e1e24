#include <glib.h>

#include "base/error.h"
#include "cli/attachment.h"

#define ID "ses_00000000000000000000000001"
#define PATH "/v1/attach/" ID "/events"

static const char *const origins[] = {"http://127.0.0.1:7071", "https://data.example.org",
                                      "http://data.example.org", "http://[::1]:7071/", NULL};

static void test_right_urls(void)
{
    static const struct {
        const char *url, *origin;
    } rows[] = {{"http://127.0.0.1:7071" PATH, "http://127.0.0.1:7071"},
                {"https://data.example.org" PATH, "https://data.example.org:443"},
                {"https://DATA.example.org:443" PATH, "https://DATA.example.org:443"},
                {"http://[::1]:7071" PATH, "http://[::1]:7071"}};
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autofree char *origin = NULL;
        g_autoptr(GError) error = NULL;
        g_assert_true(sp_attach_url_check(rows[i].url, ID, origins, false, &origin, &error));
        g_assert_cmpstr(origin, ==, rows[i].origin);
    }
}

static void test_wrong_urls(void)
{
    static const char *const urls[] = {
        "http://127.0.0.1:7072" PATH,
        "https://127.0.0.1:7071" PATH,
        "http://127.0.0.2:7071" PATH,
        "http://data.example.org" PATH, /* allowed by name, but neither https nor here */
        "https://data.example.org.evil.org" PATH,
        "https://data.example.org@evil.org" PATH,
        "https://evil.org/https://data.example.org" PATH,
        "https://evil.org/#https://data.example.org" PATH,
        "https://evil.org?x=https://data.example.org" PATH,
        "http://user@127.0.0.1:7071" PATH,
        "http://127.0.0.1:7071" PATH "?x",
        "http://127.0.0.1:7071" PATH "#x",
        "http://127.0.0.1:7071/x" PATH,
        "http://127.0.0.1:7071/" PATH,
        "http://127.0.0.1:7071/v1/attach/ses_00000000000000000000000002/events",
        "http://127.0.0.1:7071/v1/attach/" ID "/%65vents",
        "http://127.0.0.1:7071/v1/attach/" ID "/stdin",
        "http://127.0.0.1:7071",
        "file://" PATH,
        "ftp://127.0.0.1:7071" PATH,
        PATH,
        "",
    };
    for (size_t i = 0; i < G_N_ELEMENTS(urls); i++) {
        char *origin = NULL;
        g_autoptr(GError) error = NULL;
        g_assert_false(sp_attach_url_check(urls[i], ID, origins, false, &origin, &error));
        g_assert_error(error, SP_ERROR, SP_ERROR_PERMISSION_DENIED);
        g_assert_null(origin);
    }
}

static void test_same_host_other_port(void)
{
    static const char *const api[] = {"http://localhost:7070", NULL};
    g_autofree char *origin = NULL;
    g_assert_true(sp_attach_url_check("http://localhost:9" PATH, ID, api, true, &origin, NULL));
    g_assert_false(
        sp_attach_url_check("http://127.0.0.1:9" PATH, ID, api, true, &(char *){NULL}, NULL));
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/attachment/right-urls", test_right_urls);
    g_test_add_func("/attachment/wrong-urls", test_wrong_urls);
    g_test_add_func("/attachment/same-host-other-port", test_same_host_other_port);
    return g_test_run();
}
