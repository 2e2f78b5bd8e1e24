#include "base/json.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/time.h"

#define MAX_DEPTH 32

static bool depth_ok(const json_t *value, unsigned left)
{
    if (left == 0)
        return false;
    const char *key;
    json_t *item;
    size_t i;
    if (json_is_object(value)) {
        json_object_foreach((json_t *)value, key, item)
        {
            if (!depth_ok(item, left - 1))
                return false;
        }
    } else if (json_is_array(value)) {
        json_array_foreach(value, i, item)
        {
            if (!depth_ok(item, left - 1))
                return false;
        }
    }
    return true;
}

json_t *sp_json_parse(const char *text, size_t len, GError **error)
{
    json_error_t why;
    json_t *value =
        json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!value) {
        g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "invalid JSON at line %d: %s",
                    why.line, why.text);
        return NULL;
    }
    if (!depth_ok(value, MAX_DEPTH)) {
        json_decref(value);
        g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                    "invalid JSON: nested deeper than %d", MAX_DEPTH);
        return NULL;
    }
    return value;
}

/* RFC 6901: ~ and / in a key are escaped. */
static char *pointer_of(const char *key)
{
    GString *s = g_string_new("/");
    for (const char *c = key; *c; c++) {
        if (*c == '~')
            g_string_append(s, "~0");
        else if (*c == '/')
            g_string_append(s, "~1");
        else
            g_string_append_c(s, *c);
    }
    return g_string_free(s, FALSE);
}

static bool decode_string_list(json_t *value, const struct sp_json_field *f, const char *at,
                               char ***out, GError **error)
{
    if (!json_is_array(value)) {
        sp_error_set_field(error, at, "%s must be an array of strings", f->name);
        return false;
    }
    size_t n = json_array_size(value);
    if ((double)n < f->min || (double)n > f->max) {
        sp_error_set_field(error, at, "%s must have %.0f to %.0f items", f->name, f->min, f->max);
        return false;
    }
    g_autoptr(GPtrArray) list = g_ptr_array_new_with_free_func(g_free);
    size_t i;
    json_t *item;
    json_array_foreach(value, i, item)
    {
        if (!json_is_string(item) || strlen(json_string_value(item)) != json_string_length(item)) {
            g_autofree char *p = g_strdup_printf("%s/%zu", at, i);
            sp_error_set_field(error, p, "%s: item %zu must be a string without NUL", f->name, i);
            return false;
        }
        g_ptr_array_add(list, g_strdup(json_string_value(item)));
    }
    g_ptr_array_add(list, NULL);
    g_strfreev(*out);
    *out = (char **)g_ptr_array_steal(list, NULL);
    return true;
}

static bool decode_string_map(json_t *value, const struct sp_json_field *f, const char *at,
                              char ***out, GError **error)
{
    if (!json_is_object(value)) {
        sp_error_set_field(error, at, "%s must be an object of strings", f->name);
        return false;
    }
    if ((double)json_object_size(value) > f->max) {
        sp_error_set_field(error, at, "%s has more than %.0f entries", f->name, f->max);
        return false;
    }
    g_autoptr(GPtrArray) list = g_ptr_array_new_with_free_func(g_free);
    const char *key;
    json_t *item;
    json_object_foreach(value, key, item)
    {
        g_autofree char *p = pointer_of(key);
        g_autofree char *full = g_strconcat(at, p, NULL);
        if (*key == '\0' || strchr(key, '=')) {
            sp_error_set_field(error, full, "%s: a key may not be empty or contain '='", f->name);
            return false;
        }
        if (!json_is_string(item) || strlen(json_string_value(item)) != json_string_length(item)) {
            sp_error_set_field(error, full, "%s: the value must be a string without NUL", f->name);
            return false;
        }
        g_ptr_array_add(list, g_strconcat(key, "=", json_string_value(item), NULL));
    }
    g_ptr_array_add(list, NULL);
    g_strfreev(*out);
    *out = (char **)g_ptr_array_steal(list, NULL);
    return true;
}

static bool decode_string(json_t *value, const struct sp_json_field *f, const char *at, char **out,
                          GError **error)
{
    if (!json_is_string(value)) {
        sp_error_set_field(error, at, "%s must be a string", f->name);
        return false;
    }
    size_t n = json_string_length(value);
    if (strlen(json_string_value(value)) != n) {
        sp_error_set_field(error, at, "%s must not contain NUL", f->name);
        return false;
    }
    if ((double)n < f->min || (double)n > f->max) {
        sp_error_set_field(error, at, "%s must be %.0f to %.0f bytes long", f->name, f->min,
                           f->max);
        return false;
    }
    g_free(*out);
    *out = g_strdup(json_string_value(value));
    return true;
}

static bool decode_enum(json_t *value, const struct sp_json_field *f, const char *at, int *out,
                        GError **error)
{
    if (json_is_string(value)) {
        for (int i = 0; f->choices[i]; i++) {
            if (strcmp(f->choices[i], json_string_value(value)) == 0) {
                *out = i;
                return true;
            }
        }
    }
    g_autofree char *all = g_strjoinv(", ", (char **)f->choices);
    sp_error_set_field(error, at, "%s must be one of: %s", f->name, all);
    return false;
}

static bool decode_number(json_t *value, const struct sp_json_field *f, const char *at, void *out,
                          GError **error)
{
    bool whole = f->kind == SP_JSON_INT;
    if (whole ? !json_is_integer(value) : !json_is_number(value)) {
        sp_error_set_field(error, at, "%s must be %s", f->name, whole ? "an integer" : "a number");
        return false;
    }
    double n = json_number_value(value);
    if (!(n >= f->min && n <= f->max)) {
        sp_error_set_field(error, at, "%s must be between %.15g and %.15g", f->name, f->min,
                           f->max);
        return false;
    }
    if (whole)
        *(int64_t *)out = json_integer_value(value);
    else
        *(double *)out = n;
    return true;
}

static bool decode_duration(json_t *value, const struct sp_json_field *f, const char *at,
                            int64_t *out, GError **error)
{
    int64_t ms;
    if (!json_is_string(value) || !sp_duration_parse(json_string_value(value), &ms)) {
        sp_error_set_field(error, at, "%s must be a duration such as \"30s\", \"10m\" or \"6h\"",
                           f->name);
        return false;
    }
    if ((double)ms < f->min || (double)ms > f->max) {
        char lo[SP_TIME_TEXT], hi[SP_TIME_TEXT];
        sp_duration_format((int64_t)f->min, lo);
        sp_duration_format((int64_t)f->max, hi);
        sp_error_set_field(error, at, "%s must be between \"%s\" and \"%s\"", f->name, lo, hi);
        return false;
    }
    *out = ms;
    return true;
}

static bool decode_field(json_t *value, const struct sp_json_field *f, void *base, GError **error)
{
    void *out = (char *)base + f->offset;
    g_autofree char *at = pointer_of(f->name);
    switch (f->kind) {
    case SP_JSON_STRING:
        return decode_string(value, f, at, out, error);
    case SP_JSON_ENUM:
        return decode_enum(value, f, at, out, error);
    case SP_JSON_BOOL:
        if (!json_is_boolean(value)) {
            sp_error_set_field(error, at, "%s must be true or false", f->name);
            return false;
        }
        *(bool *)out = json_is_true(value);
        return true;
    case SP_JSON_INT:
    case SP_JSON_NUMBER:
        return decode_number(value, f, at, out, error);
    case SP_JSON_DURATION:
        return decode_duration(value, f, at, out, error);
    case SP_JSON_STRING_LIST:
        return decode_string_list(value, f, at, out, error);
    case SP_JSON_STRING_MAP:
        return decode_string_map(value, f, at, out, error);
    case SP_JSON_OBJECT:
        if (!json_is_object(value)) {
            sp_error_set_field(error, at, "%s must be an object", f->name);
            return false;
        }
        if (!sp_json_decode(value, f->sub, out, error)) {
            sp_error_prefix_field(error, f->name);
            return false;
        }
        return true;
    case SP_JSON_RAW:
        json_decref(*(json_t **)out);
        *(json_t **)out = json_incref(value);
        return true;
    }
    g_assert_not_reached();
}

bool sp_json_decode(json_t *object, const struct sp_json_field *table, void *out, GError **error)
{
    if (!json_is_object(object)) {
        sp_error_set_field(error, "", "a JSON object is expected");
        return false;
    }
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        const struct sp_json_field *f = table;
        while (f->name && strcmp(f->name, key) != 0)
            f++;
        if (!f->name) {
            g_autofree char *at = pointer_of(key);
            sp_error_set_field(error, at, "unknown field %s", key);
            return false;
        }
        if (json_is_null(value))
            continue;
        if (!decode_field(value, f, out, error))
            return false;
        if (f->present_offset)
            *(bool *)((char *)out + f->present_offset) = true;
    }
    for (const struct sp_json_field *f = table; f->name; f++) {
        json_t *v = json_object_get(object, f->name);
        if (f->required && (!v || json_is_null(v))) {
            g_autofree char *at = pointer_of(f->name);
            sp_error_set_field(error, at, "%s is required", f->name);
            return false;
        }
    }
    return true;
}

void sp_json_clear(const struct sp_json_field *table, void *base)
{
    for (const struct sp_json_field *f = table; f->name; f++) {
        void *out = (char *)base + f->offset;
        switch (f->kind) {
        case SP_JSON_STRING:
            g_clear_pointer((char **)out, g_free);
            break;
        case SP_JSON_STRING_LIST:
        case SP_JSON_STRING_MAP:
            g_clear_pointer((char ***)out, g_strfreev);
            break;
        case SP_JSON_OBJECT:
            sp_json_clear(f->sub, out);
            break;
        case SP_JSON_RAW:
            g_clear_pointer((json_t **)out, json_decref);
            break;
        default:
            break;
        }
    }
}

json_t *sp_json_from_map(char *const *pairs)
{
    json_t *object = json_object();
    for (; pairs && *pairs; pairs++) {
        const char *eq = strchr(*pairs, '=');
        g_autofree char *key = g_strndup(*pairs, (gsize)(eq - *pairs));
        json_object_set_new(object, key, sp_json_text(eq + 1));
    }
    return object;
}

json_t *sp_json_from_strv(char *const *list)
{
    json_t *array = json_array();
    for (; list && *list; list++)
        json_array_append_new(array, sp_json_text(*list));
    return array;
}

json_t *sp_json_text(const char *text)
{
    if (!text)
        return json_null();
    json_t *value = json_string(text);
    if (!value) {
        g_autofree char *valid = g_utf8_make_valid(text, -1);
        value = json_string(valid);
    }
    return value;
}

char *sp_json_dump(const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    char *copy = g_strdup(text);
    free(text);
    return copy;
}
