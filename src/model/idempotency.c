#include "model/idempotency.h"

#include <string.h>

#include "base/error.h"

bool sp_idempotency_key_check(const char *key, GError **error)
{
    size_t len = strlen(key);
    bool ok = len >= 1 && len <= 200;
    for (const char *c = key; ok && *c; c++)
        ok = *c >= 0x20 && *c <= 0x7e;
    if (!ok)
        sp_error_set_field(
            error, "Idempotency-Key",
            "the header Idempotency-Key must be 1 to 200 printable ASCII characters");
    return ok;
}

void sp_idempotency_hash(const char *method, const char *path, const json_t *body,
                         char ret_hex[SP_HASH_HEX])
{
    g_autoptr(GChecksum) sum = g_checksum_new(G_CHECKSUM_SHA256);
    g_checksum_update(sum, (const guchar *)method, -1);
    g_checksum_update(sum, (const guchar *)"\n", 1);
    g_checksum_update(sum, (const guchar *)path, -1);
    g_checksum_update(sum, (const guchar *)"\n", 1);
    /* No body and {} are the same request: every body of the API may be left out that way. */
    if (body && json_object_size(body) > 0) {
        char *text = json_dumps(body, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
        g_checksum_update(sum, (const guchar *)text, -1);
        free(text);
    }
    g_strlcpy(ret_hex, g_checksum_get_string(sum), SP_HASH_HEX);
}

bool sp_prefer_parse(const char *header, int64_t *ret_wait_ms, GError **error)
{
    int64_t wait_ms = 0;
    g_auto(GStrv) parts = g_strsplit(header ? header : "", ",", 32);
    for (char **part = parts; *part; part++) {
        g_strstrip(*part);
        if (g_ascii_strncasecmp(*part, "wait", 4) != 0 || (*part)[4] != '=')
            continue;
        const char *value = *part + 5;
        size_t digits = strspn(value, "0123456789");
        guint64 seconds = digits >= 1 && digits <= 3 ? g_ascii_strtoull(value, NULL, 10) : 0;
        if (value[digits] != '\0' || seconds < 1 || seconds > 600) {
            sp_error_set_field(error, "Prefer",
                               "the header Prefer: wait must be 1 to 600 whole seconds");
            return false;
        }
        if (wait_ms == 0) /* RFC 7240: the first one counts */
            wait_ms = (int64_t)seconds * 1000;
    }
    *ret_wait_ms = wait_ms;
    return true;
}
