#include "model/cursor.h"

#include <string.h>

#include "base/error.h"
#include "base/ids.h"

char *sp_cursor_encode(const char *last_id)
{
    g_autofree char *text = g_strconcat("1:", last_id, NULL);
    char *cursor = g_base64_encode((const guchar *)text, strlen(text));
    for (char *c = cursor; *c; c++) {
        if (*c == '+')
            *c = '-';
        else if (*c == '/')
            *c = '_';
        else if (*c == '=')
            *c = '\0';
    }
    return cursor;
}

/* base64url without padding → base64 with it. */
static char *with_padding(const char *cursor)
{
    char *padded = g_strconcat(cursor, &"==="[3 - (4 - strlen(cursor) % 4) % 4], NULL);
    for (char *c = padded; *c; c++)
        *c = *c == '-' ? '+' : *c == '_' ? '/' : *c;
    return padded;
}

bool sp_cursor_decode(const char *cursor, const char *prefix, char ret_id[SP_CURSOR_MAX],
                      GError **error)
{
    g_autofree char *text = NULL;
    gsize n = 0;
    size_t len = strlen(cursor);
    if (len > 0 && len <= 2 * SP_CURSOR_MAX) {
        g_autofree char *padded = with_padding(cursor);
        g_autofree guchar *raw = g_base64_decode(padded, &n);
        text = g_strndup((const char *)raw, n);
    }
    if (n < 3 || n >= SP_CURSOR_MAX + 2 || strlen(text) != n || strncmp(text, "1:", 2) != 0 ||
        (prefix && !sp_id_valid(text + 2, prefix))) {
        sp_error_set_field(error, "cursor", "cursor is not one that this list gave out");
        return false;
    }
    g_strlcpy(ret_id, text + 2, SP_CURSOR_MAX);
    return true;
}

bool sp_page_limit_parse(const char *text, unsigned *ret, GError **error)
{
    unsigned limit = SP_PAGE_DEFAULT;
    if (text) {
        size_t digits = strspn(text, "0123456789");
        limit = digits >= 1 && digits <= 4 ? (unsigned)g_ascii_strtoull(text, NULL, 10) : 0;
        if (text[digits] != '\0' || limit < 1 || limit > SP_PAGE_MAX) {
            sp_error_set_field(error, "limit", "limit must be 1 to %d", SP_PAGE_MAX);
            return false;
        }
    }
    *ret = limit;
    return true;
}
