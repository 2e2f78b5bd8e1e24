#include "node/lenient.h"

#include "base/error.h"

bool sp_node_decode(json_t *object, const struct sp_json_field *table, void *out, GError **error)
{
    if (!json_is_object(object)) {
        g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "not an object");
        return false;
    }
    g_autoptr(json_t) known = json_object();
    for (const struct sp_json_field *field = table; field->name; field++) {
        json_t *value = json_object_get(object, field->name);
        if (value)
            json_object_set(known, field->name, value);
    }
    return sp_json_decode(known, table, out, error);
}
