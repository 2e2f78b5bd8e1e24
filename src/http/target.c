#include "http/internal.h"

#include <string.h>

#define MAX_QUERY_PARAMETERS 64u

/* The byte of the escape at text[at]; -1: broken. */
static int escape_decode(const char *text, size_t len, size_t at)
{
    if (len - at < 3)
        return -1;
    const int high = g_ascii_xdigit_value(text[at + 1]);
    const int low = g_ascii_xdigit_value(text[at + 2]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

char *sp_http_percent_decode(const char *text, size_t len, bool plus_is_space, GError **error)
{
    g_autoptr(GString) out = g_string_sized_new(len);
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '%') {
            const int byte = escape_decode(text, len, i);
            if (byte <= 0) {
                g_set_error_literal(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                                    byte == 0 ? "the URL holds an encoded NUL"
                                              : "the URL holds a broken percent escape");
                return NULL;
            }
            g_string_append_c(out, (char)byte);
            i += 2;
        } else {
            g_string_append_c(out, plus_is_space && text[i] == '+' ? ' ' : text[i]);
        }
    }
    if (!g_utf8_validate(out->str, (gssize)out->len, NULL)) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "the URL is not UTF-8");
        return NULL;
    }
    return g_string_free(g_steal_pointer(&out), FALSE);
}

GPtrArray *sp_http_query_parse(const char *query, GError **error)
{
    g_autoptr(GPtrArray) pairs = g_ptr_array_new_with_free_func(g_free);
    const char *at = query;
    while (at && *at) {
        const size_t len = strcspn(at, "&");
        if (len > 0) {
            if (pairs->len >= 2 * MAX_QUERY_PARAMETERS) {
                g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                            "more than %u query parameters", MAX_QUERY_PARAMETERS);
                return NULL;
            }
            const char *equals = memchr(at, '=', len);
            const size_t name_len = equals ? (size_t)(equals - at) : len;
            char *name = sp_http_percent_decode(at, name_len, true, error);
            if (!name)
                return NULL;
            g_ptr_array_add(pairs, name);
            char *value = equals
                              ? sp_http_percent_decode(equals + 1, len - name_len - 1, true, error)
                              : g_strdup("");
            if (!value)
                return NULL;
            g_ptr_array_add(pairs, value);
        }
        at += len;
        if (*at == '&')
            at++;
    }
    return g_steal_pointer(&pairs);
}
