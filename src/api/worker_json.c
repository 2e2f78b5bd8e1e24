#include "api/worker_json.h"

#include <string.h>

#include "base/error.h"
#include "base/json.h"

static bool bad(const char *name, const char *what, GError **error)
{
    g_autofree char *pointer = g_strconcat("/", name, NULL);
    sp_error_set_field(error, pointer, "%s must be %s", name, what);
    return false;
}

bool sp_worker_text(json_t *object, const char *name, bool required, const char **ret,
                    GError **error)
{
    json_t *value = json_object_get(object, name);
    bool absent = !value || json_is_null(value);
    if (absent && !required) {
        *ret = NULL;
        return true;
    }
    const char *text = json_string_value(value);
    if (!text || strlen(text) != json_string_length(value))
        return bad(name, "a string without NUL", error);
    *ret = text;
    return true;
}

bool sp_worker_integer(json_t *object, const char *name, bool required, int64_t *ret,
                       GError **error)
{
    json_t *value = json_object_get(object, name);
    bool absent = !value || json_is_null(value);
    if (absent && !required) {
        *ret = 0;
        return true;
    }
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return bad(name, "an integer of at least 0", error);
    *ret = json_integer_value(value);
    return true;
}

bool sp_worker_number(json_t *object, const char *name, double *ret, GError **error)
{
    json_t *value = json_object_get(object, name);
    if (value && !json_is_null(value) && (!json_is_number(value) || json_number_value(value) < 0))
        return bad(name, "a number of at least 0", error);
    *ret = json_number_value(value);
    return true;
}

bool sp_worker_array(json_t *object, const char *name, json_t **ret, GError **error)
{
    json_t *value = json_object_get(object, name);
    if (!json_is_array(value) || json_array_size(value) > SP_WORKER_MAX_ITEMS)
        return bad(name, "an array of at most 10000 items", error);
    *ret = value;
    return true;
}

char *sp_worker_dump(json_t *object, const char *name)
{
    json_t *value = json_object_get(object, name);
    return json_is_object(value) || json_is_array(value) ? sp_json_dump(value) : NULL;
}

void sp_worker_error(json_t *object, const char **ret_code, const char **ret_message)
{
    json_t *error = json_object_get(object, "error");
    *ret_code = json_string_value(json_object_get(error, "code"));
    *ret_message = json_string_value(json_object_get(error, "message"));
}
