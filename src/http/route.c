/*
 * The table of routes. Patterns are split once; a path is split and decoded once and compared
 * segment by segment. The first row that fits wins.
 */
#include "http/internal.h"

#include <string.h>

#define MAX_SEGMENTS 16u

void sp_http_routes_compile(struct sp_http_routes *routes, const struct sp_http_route *table)
{
    unsigned n = 0;
    while (table[n].method)
        n++;
    routes->rows = g_new0(struct sp_http_compiled_route, n + 1);
    routes->n_rows = n;
    for (unsigned i = 0; i < n; i++) {
        g_assert(table[i].pattern[0] == '/');
        routes->rows[i].route = &table[i];
        routes->rows[i].segments = g_strsplit(table[i].pattern + 1, "/", -1);
        unsigned n_params = 0;
        for (char **s = routes->rows[i].segments; *s; s++)
            n_params += strcmp(*s, "{}") == 0;
        g_assert(n_params <= SP_HTTP_MAX_PARAMS);
    }
}

void sp_http_routes_clear(struct sp_http_routes *routes)
{
    for (unsigned i = 0; i < routes->n_rows; i++)
        g_strfreev(routes->rows[i].segments);
    g_clear_pointer(&routes->rows, g_free);
    routes->n_rows = 0;
}

void sp_http_match_clear(struct sp_http_match *match)
{
    for (unsigned i = 0; i < SP_HTTP_MAX_PARAMS; i++)
        g_clear_pointer(&match->params[i], g_free);
    match->route = NULL;
}

/* A decoded segment that could be read as another path by someone behind us is refused. */
static bool segment_check(const char *segment, GError **error)
{
    const char *problem = NULL;
    if (strchr(segment, '/'))
        problem = "an encoded slash";
    else if (strcmp(segment, ".") == 0 || strcmp(segment, "..") == 0)
        problem = "a \".\" or \"..\" segment";
    if (!problem)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "the path holds %s", problem);
    return false;
}

/* NULL-terminated; NULL with *error. */
static char **path_split(const char *path, GError **error)
{
    if (path[0] != '/') {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                            "the request target does not start with a slash");
        return NULL;
    }
    /* One more than any pattern has: such a path matches nothing, whatever the rest is. */
    g_auto(GStrv) segments = g_strsplit(path + 1, "/", MAX_SEGMENTS + 1);
    for (char **s = segments; *s; s++) {
        if (s - segments == MAX_SEGMENTS)
            break;
        char *decoded = sp_http_percent_decode(*s, strlen(*s), false, error);
        if (!decoded)
            return NULL;
        g_free(*s);
        *s = decoded;
        if (!segment_check(decoded, error))
            return NULL;
    }
    return g_steal_pointer(&segments);
}

static bool segments_match(char *const *pattern, char *const *path)
{
    for (; *pattern && *path; pattern++, path++) {
        if (strcmp(*pattern, "{}") == 0) {
            if (**path == '\0')
                return false;
        } else if (strcmp(*pattern, *path) != 0) {
            return false;
        }
    }
    return !*pattern && !*path;
}

static bool method_match(const struct sp_http_route *route, const char *method)
{
    return strcmp(route->method, method) == 0 ||
           (strcmp(method, "HEAD") == 0 && strcmp(route->method, "GET") == 0 &&
            !route->refuse_head);
}

static void allow_add(GString *allow, const struct sp_http_route *route)
{
    g_string_append_printf(allow, "%s%s", allow->len ? ", " : "", route->method);
    if (strcmp(route->method, "GET") == 0 && !route->refuse_head)
        g_string_append(allow, ", HEAD");
}

bool sp_http_routes_match(const struct sp_http_routes *routes, const char *method, const char *path,
                          struct sp_http_match *ret, char **ret_allow, GError **error)
{
    g_auto(GStrv) segments = path_split(path, error);
    if (!segments)
        return false;
    g_autoptr(GString) allow = g_string_new(NULL);
    for (unsigned i = 0; i < routes->n_rows; i++) {
        const struct sp_http_compiled_route *row = &routes->rows[i];
        if (!segments_match(row->segments, segments))
            continue;
        if (!method_match(row->route, method)) {
            allow_add(allow, row->route);
            continue;
        }
        ret->route = row->route;
        unsigned n = 0;
        for (unsigned s = 0; row->segments[s]; s++) {
            if (strcmp(row->segments[s], "{}") == 0)
                ret->params[n++] = g_strdup(segments[s]);
        }
        return true;
    }
    if (allow->len > 0) {
        *ret_allow = g_strdup(allow->str);
        g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "%s is not served here (try %s)",
                    method, allow->str);
    } else {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no such URL");
    }
    return false;
}
