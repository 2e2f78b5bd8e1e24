#include "cli/change.h"

#include <string.h>

#include "base/error.h"
#include "base/ids.h"

/* The first request waits this long; then the operation is asked for. */
#define WAIT_S 300
#define WAIT_MORE_MS (30 * 60 * INT64_C(1000))

/* Path of an object of an answer ("sandbox" → /v1/sandboxes/<id>); NULL when it has none. */
static char *object_path(json_t *answer, const char *object)
{
    const char *prefix = strcmp(object, "sandbox") == 0 ? "sbx" : "snp";
    const char *folder = strcmp(object, "sandbox") == 0 ? "sandboxes" : "snapshots";
    const char *id = json_string_value(json_object_get(json_object_get(answer, object), "id"));
    return id && sp_id_valid(id, prefix) ? g_strdup_printf("/v1/%s/%s", folder, id) : NULL;
}

static bool has_ended(json_t *operation)
{
    const char *state = json_string_value(json_object_get(operation, "state"));
    return g_strcmp0(state, "succeeded") == 0 || g_strcmp0(state, "failed") == 0;
}

bool sp_change_follow(struct sp_client *api, json_t *answer, const char *object, GError **error)
{
    json_t *operation = json_object_get(answer, "operation");
    if (!operation)
        return true; /* done at once */
    bool waited = has_ended(operation);
    json_t *ended =
        sp_client_wait_operation(api, operation, WAIT_MORE_MS, (struct sp_client_cancel){0}, error);
    if (!ended)
        return false;
    json_object_set_new(answer, "operation", ended);
    g_autofree char *path = !waited && object ? object_path(answer, object) : NULL;
    if (!path)
        return true;
    json_t *now = sp_client_get(api, path, error);
    if (now)
        json_object_set_new(answer, object, now);
    return now != NULL;
}

json_t *sp_change_request(struct sp_client *api, const char *method, const char *path, json_t *body,
                          const char *object, GError **error)
{
    g_autoptr(json_t) empty = body ? NULL : json_object();
    bool bodiless = strcmp(method, "DELETE") == 0;
    struct sp_client_request request = {.method = method,
                                        .path = path,
                                        .json = bodiless ? NULL
                                                : body   ? body
                                                         : empty,
                                        .wait_s = WAIT_S};
    g_autoptr(json_t) answer = sp_client_call(api, &request, NULL, error);
    if (!answer || !sp_change_follow(api, answer, object, error))
        return NULL;
    return g_steal_pointer(&answer);
}

json_t *sp_change_call(struct sp_client *api, const char *path, json_t *body, const char *object,
                       GError **error)
{
    return sp_change_request(api, "POST", path, body, object, error);
}

char *sp_change_resolve_snapshot(struct sp_client *api, const char *id_or_name, GError **error)
{
    if (sp_id_valid(id_or_name, "snp"))
        return g_strdup(id_or_name);
    g_autoptr(json_t) list = sp_client_list(api, "/v1/snapshots", error);
    if (!list)
        return NULL;
    g_autofree char *found = NULL;
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(list, "items"), i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        const char *id = json_string_value(json_object_get(item, "id"));
        const char *state = json_string_value(json_object_get(item, "state"));
        if (g_strcmp0(name, id_or_name) != 0 || !id || !sp_id_valid(id, "snp") ||
            g_strcmp0(state, "deleting") == 0)
            continue;
        if (found) {
            g_set_error(error, SP_ERROR, SP_ERROR_CONFLICT,
                        "more than one snapshot is named \"%s\": use the id", id_or_name);
            return NULL;
        }
        found = g_strdup(id);
    }
    if (!found)
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no snapshot \"%s\"", id_or_name);
    return g_steal_pointer(&found);
}
