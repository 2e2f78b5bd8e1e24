/* docs/openapi.yaml and the route tables of server and worker hold the same routes, in both directions. */
#include <glib.h>
#include <string.h>

#include "api/api.h"
#include "node/routes.h"

static GHashTable *routes_of_table(void)
{
    GHashTable *set = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    for (const struct sp_api_route *r = sp_api_routes; r->method; r++) {
        if (!g_str_has_prefix(r->pattern, "/worker/")) /* docs/worker-protocol.md */
            g_hash_table_add(set, g_strdup_printf("%s %s", r->method, r->pattern));
    }
    for (const struct sp_http_route *r = sp_node_routes; r->method; r++) {
        if (!g_str_has_prefix(r->pattern, "/node/")) /* docs/worker-protocol.md */
            g_hash_table_add(set, g_strdup_printf("%s %s", r->method, r->pattern));
    }
    return set;
}

/* "/v1/sandboxes/{id}" → "/v1/sandboxes/{}" */
static char *without_names(const char *path)
{
    GString *out = g_string_new(NULL);
    bool inside = false;
    for (const char *c = path; *c; c++) {
        if (*c == '}')
            inside = false;
        if (!inside)
            g_string_append_c(out, *c);
        if (*c == '{')
            inside = true;
    }
    return g_string_free(out, FALSE);
}

/* The file is laid out so that it can be read by lines: paths indented by two, methods by four. */
static GHashTable *routes_of_file(void)
{
    g_autofree char *path =
        g_build_filename(g_getenv("SPACE_SOURCE_DIR"), "docs", "openapi.yaml", NULL);
    g_autofree char *text = NULL;
    g_autoptr(GError) error = NULL;
    g_file_get_contents(path, &text, NULL, &error);
    g_assert_no_error(error);
    GHashTable *set = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    g_autofree char *pattern = NULL;
    for (char **line = lines; *line && !g_str_has_prefix(*line, "components:"); line++) {
        size_t len = strlen(*line);
        if (len < 5 || (*line)[len - 1] != ':')
            continue;
        (*line)[len - 1] = '\0';
        if (g_str_has_prefix(*line, "  /")) {
            g_free(pattern);
            pattern = without_names(*line + 2);
        } else if (pattern && strncmp(*line, "    ", 4) == 0 && (*line)[4] != ' ') {
            g_autofree char *method = g_ascii_strup(*line + 4, -1);
            if (strcmp(method, "PARAMETERS") != 0)
                g_hash_table_add(set, g_strdup_printf("%s %s", method, pattern));
        }
    }
    return set;
}

static void assert_all_in(GHashTable *these, GHashTable *those, const char *where)
{
    GHashTableIter iter;
    gpointer route;
    g_hash_table_iter_init(&iter, these);
    while (g_hash_table_iter_next(&iter, &route, NULL)) {
        if (!g_hash_table_contains(those, route)) {
            g_test_message("%s is not in %s", (char *)route, where);
            g_test_fail();
        }
    }
}

static void test_file_and_table(void)
{
    g_autoptr(GHashTable) table = routes_of_table();
    g_autoptr(GHashTable) file = routes_of_file();
    g_assert_cmpint(g_hash_table_size(table), >, 20);
    assert_all_in(table, file, "docs/openapi.yaml");
    assert_all_in(file, table, "src/api/routes.c or src/node/routes.c");
}

/* A route without a handler or with a body limit of 0 would only be found by a caller. */
static void test_rows_are_whole(void)
{
    const struct sp_http_route *http = sp_api_http_routes;
    for (const struct sp_api_route *r = sp_api_routes; r->method; r++, http++) {
        g_assert_cmpstr(r->method, ==, http->method);
        g_assert_cmpstr(r->pattern, ==, http->pattern);
        g_assert_nonnull(r->handler);
        g_assert_cmpint(r->max_body_bytes, >, 0);
        bool open = r->auth == SP_API_OPEN;
        g_assert_true((http->authorize == NULL) == open);
        if (open)
            g_assert_cmpstr(r->method, ==, "GET");
    }
    g_assert_null(http->method);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/openapi/file_and_table", test_file_and_table);
    g_test_add_func("/openapi/rows_are_whole", test_rows_are_whole);
    return g_test_run();
}
