#include "model/template.h"

#include <stddef.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"

static bool word_valid(const char *text, bool upper, bool first_underscore)
{
    if (!*text || strlen(text) >= SP_TEMPLATE_NAME_MAX)
        return false;
    for (const char *c = text; *c; c++) {
        bool letter = g_ascii_isdigit(*c) || g_ascii_islower(*c) || (upper && g_ascii_isupper(*c));
        bool mark = c == text ? first_underscore && *c == '_' : strchr("._-", *c) != NULL;
        if (!letter && !mark)
            return false;
    }
    return true;
}

bool sp_digest_valid(const char *text)
{
    if (strncmp(text, "sha256:", 7) != 0 || strlen(text) != 7 + 64)
        return false;
    return strspn(text + 7, "0123456789abcdef") == 64;
}

bool sp_template_ref_parse(const char *text, struct sp_template_ref *ret)
{
    struct sp_template_ref ref = {0};
    if (strncmp(text, "sha256:", 7) == 0) {
        if (!sp_digest_valid(text))
            return false;
        g_strlcpy(ref.digest, text, sizeof ref.digest);
        *ret = ref;
        return true;
    }
    const char *colon = strchr(text, ':');
    size_t len = colon ? (size_t)(colon - text) : strlen(text);
    if (len >= sizeof ref.name)
        return false;
    memcpy(ref.name, text, len);
    if (colon && strlen(colon + 1) >= sizeof ref.tag)
        return false;
    g_strlcpy(ref.tag, colon ? colon + 1 : "latest", sizeof ref.tag);
    if (!word_valid(ref.name, false, false) || !word_valid(ref.tag, true, true))
        return false;
    *ret = ref;
    return true;
}

static const struct sp_json_field table[] = {
    {"name", SP_JSON_STRING, offsetof(struct sp_template_request, name), 1,
     SP_TEMPLATE_NAME_MAX - 1, .required = true},
    {"tag", SP_JSON_STRING, offsetof(struct sp_template_request, tag), 1, SP_TEMPLATE_NAME_MAX - 1},
    {"recipe", SP_JSON_RAW, offsetof(struct sp_template_request, recipe), .required = true},
    {"no_cache", SP_JSON_BOOL, offsetof(struct sp_template_request, no_cache)},
    {NULL},
};

bool sp_template_request_decode(json_t *body, struct sp_template_request *ret, GError **error)
{
    struct sp_template_request r = {.tag = g_strdup("latest")};
    if (!sp_json_decode(body, table, &r, error))
        goto fail;
    /* "sha256" as a name could not be told from a digest */
    if (!word_valid(r.name, false, false) || strcmp(r.name, "sha256") == 0) {
        sp_error_set_field(error, "/name", "name must match [a-z0-9][a-z0-9._-]*");
        goto fail;
    }
    if (!word_valid(r.tag, true, true)) {
        sp_error_set_field(error, "/tag", "tag must match [A-Za-z0-9_][A-Za-z0-9._-]*");
        goto fail;
    }
    if (!json_is_object(r.recipe)) {
        sp_error_set_field(error, "/recipe", "recipe must be an object");
        goto fail;
    }
    *ret = r;
    return true;
fail:
    sp_template_request_clear(&r);
    return false;
}

void sp_template_request_clear(struct sp_template_request *request)
{
    sp_json_clear(table, request);
}
