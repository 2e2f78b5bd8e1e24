#include <string.h>

#include "api/api.h"
#include "base/error.h"
#include "model/cursor.h"

G_STATIC_ASSERT(sizeof(((struct sp_page *)0)->cursor) == SP_CURSOR_MAX);

struct query_check {
    const char *const *allowed;
    char *unknown;
};

static bool check_name(void *user, const char *name, const char *value)
{
    struct query_check *check = user;
    if (strcmp(name, "limit") == 0 || strcmp(name, "cursor") == 0)
        return true;
    for (const char *const *a = check->allowed; *a; a++) {
        size_t len = strlen(*a);
        bool prefix = len > 0 && (*a)[len - 1] == '.';
        if (prefix ? strncmp(name, *a, len) == 0 && name[len] : strcmp(name, *a) == 0)
            return true;
    }
    check->unknown = g_strdup(name);
    return false;
}

bool sp_api_page(struct sp_api_call *call, const char *id_prefix, const char *const *allowed,
                 struct sp_page *ret, GError **error)
{
    struct query_check check = {.allowed = allowed};
    sp_http_query_each(call->http, check_name, &check);
    if (check.unknown) {
        sp_error_set_field(error, check.unknown, "unknown query parameter %s", check.unknown);
        g_free(check.unknown);
        return false;
    }
    struct sp_page page = {0};
    const char *cursor = sp_http_query(call->http, "cursor");
    if (!sp_page_limit_parse(sp_http_query(call->http, "limit"), &page.limit, error))
        return false;
    page.has_cursor = cursor != NULL;
    if (cursor && !sp_cursor_decode(cursor, id_prefix, page.cursor, error))
        return false;
    *ret = page;
    return true;
}

json_t *sp_api_list(struct sp_api_call *call, GPtrArray *rows, unsigned limit,
                    json_t *(*render)(struct sp_api_call *call, const void *row),
                    const char *(*id_of)(const void *row))
{
    json_t *items = json_array();
    unsigned shown = MIN(rows->len, limit);
    for (unsigned i = 0; i < shown; i++)
        json_array_append_new(items, render(call, rows->pdata[i]));
    g_autofree char *next =
        rows->len > limit ? sp_cursor_encode(id_of(rows->pdata[shown - 1])) : NULL;
    json_t *list = json_object();
    json_object_set_new(list, "items", items);
    json_object_set_new(list, "next_cursor", sp_json_text(next));
    return list;
}

bool sp_api_query_choice(struct sp_api_call *call, const char *name, const char *const *choices,
                         const char **ret, GError **error)
{
    const char *value = sp_http_query(call->http, name);
    for (const char *const *c = choices; value && *c; c++) {
        if (strcmp(*c, value) == 0) {
            *ret = *c;
            return true;
        }
    }
    if (value) {
        g_autofree char *all = g_strjoinv(", ", (char **)choices);
        sp_error_set_field(error, name, "%s must be one of: %s", name, all);
        return false;
    }
    *ret = NULL;
    return true;
}
