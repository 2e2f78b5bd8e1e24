#include "cli/sandbox_options.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/ids.h"
#include "cli/change.h"
#include "cli/remote.h"

/* A first create of a template may prepare its boot image (driver.h, prepare()). */
#define CREATE_WAIT_S 300
#define CLEAN_UP_WAIT_S 30

static bool set_text(json_t *body, const char *name, const char *value, GError **error)
{
    if (!value || json_object_set_new(body, name, json_string(value)) == 0)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "--%s is not UTF-8", name);
    return false;
}

static bool set_metadata(json_t *body, char *const *pairs, GError **error)
{
    if (!pairs)
        return true;
    json_t *map = json_object();
    json_object_set_new(body, "metadata", map);
    for (; *pairs; pairs++) {
        const char *equals = strchr(*pairs, '=');
        g_autofree char *name = equals ? g_strndup(*pairs, (gsize)(equals - *pairs)) : NULL;
        if (!name || json_object_set_new(map, name, json_string(equals + 1)) != 0) {
            g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                        "--metadata %s: not K=V in UTF-8", *pairs);
            return false;
        }
    }
    return true;
}

static void set_resources(json_t *body, const struct sp_sandbox_options *o)
{
    json_t *resources = json_object();
    if (o->cpus > 0)
        json_object_set_new(resources, "cpus", json_real(o->cpus));
    if (o->memory_mb)
        json_object_set_new(resources, "memory_mb", json_integer(o->memory_mb));
    if (o->disk_mb)
        json_object_set_new(resources, "disk_mb", json_integer(o->disk_mb));
    if (o->pids)
        json_object_set_new(resources, "pids", json_integer(o->pids));
    if (json_object_size(resources))
        json_object_set(body, "resources", resources);
    json_decref(resources);
}

static bool set_snapshot(struct sp_client *api, json_t *body, const char *id_or_name,
                         GError **error)
{
    if (!id_or_name)
        return true;
    g_autofree char *id = sp_change_resolve_snapshot(api, id_or_name, error);
    return id && set_text(body, "snapshot_id", id, error);
}

json_t *sp_sandbox_options_body(struct sp_client *api, const struct sp_sandbox_options *o,
                                bool defaults_too, GError **error)
{
    g_autoptr(json_t) body = json_object();
    if (!set_text(body, "template", o->template_ref, error) ||
        !set_snapshot(api, body, o->snapshot, error) ||
        !set_text(body, "isolation", o->isolation, error) ||
        !set_text(body, "name", o->name, error) || !set_metadata(body, o->metadata, error))
        return NULL;
    if (o->untrusted)
        json_object_set_new(body, "untrusted", json_true());
    set_resources(body, o);
    if (defaults_too) {
        json_t *env = sp_remote_env(o->env, error);
        if (!env || !set_text(body, "user", o->user, error)) {
            json_decref(env);
            return NULL;
        }
        if (json_object_size(env))
            json_object_set(body, "env", env);
        json_decref(env);
    }
    return g_steal_pointer(&body);
}

char *sp_sandbox_path(json_t *answer)
{
    const char *id = json_string_value(json_object_get(json_object_get(answer, "sandbox"), "id"));
    return id && sp_id_valid(id, "sbx") ? g_strconcat("/v1/sandboxes/", id, NULL) : NULL;
}

json_t *sp_sandbox_delete(struct sp_client *api, const char *path, unsigned wait_s, GError **error)
{
    struct sp_client_request request = {.method = "DELETE", .path = path, .wait_s = wait_s};
    int status = 0;
    g_autoptr(json_t) answer = sp_client_call(api, &request, &status, error);
    if (!answer)
        return NULL;
    json_t *operation = json_object_get(answer, "operation");
    json_t *ended = sp_client_wait_operation(api, operation, status == 202 ? 5000 : 0,
                                             (struct sp_client_cancel){0}, error);
    if (!ended)
        return NULL;
    json_object_set_new(answer, "operation", ended);
    return g_steal_pointer(&answer);
}

/* The create did not come to a good end. Its answer may have been lost: the same key gives it
 * again. */
static void undo_create(struct sp_client *api, const struct sp_client_request *create,
                        json_t *answer)
{
    struct sp_client_request again = *create;
    again.wait_s = 0;
    again.cancel = (struct sp_client_cancel){0};
    g_autoptr(GError) error = NULL;
    g_autoptr(json_t) known =
        answer ? json_incref(answer) : sp_client_call(api, &again, NULL, &error);
    g_autofree char *path = known ? sp_sandbox_path(known) : NULL;
    if (!path) {
        if (error)
            fprintf(stderr, "space: not known whether a sandbox was made: %s\n", error->message);
        return;
    }
    g_autoptr(json_t) deleted = sp_sandbox_delete(api, path, CLEAN_UP_WAIT_S, &error);
    if (!deleted && !g_error_matches(error, SP_ERROR, SP_ERROR_NOT_FOUND))
        fprintf(stderr, "space: %s could not be deleted: %s\n", path + strlen("/v1/sandboxes/"),
                error->message);
}

/* The sandbox as it is now that the operation has ended. */
static bool refresh(struct sp_client *api, json_t *answer, json_t *operation, GError **error)
{
    json_object_set(answer, "operation", operation);
    g_autofree char *path = sp_sandbox_path(answer);
    json_t *sandbox = path ? sp_client_get(api, path, error) : NULL;
    if (!path)
        g_set_error_literal(error, SP_ERROR, SP_ERROR_INTERNAL, "the server named no sandbox");
    if (!sandbox)
        return false;
    json_object_set_new(answer, "sandbox", sandbox);
    return true;
}

json_t *sp_sandbox_create(struct sp_client *api, json_t *body, struct sp_client_cancel cancel,
                          GError **error)
{
    char key[SP_ID_MAX];
    sp_id_new("cli", key);
    struct sp_client_request request = {.method = "POST",
                                        .path = "/v1/sandboxes",
                                        .json = body,
                                        .wait_s = CREATE_WAIT_S,
                                        .idempotency_key = key,
                                        .cancel = cancel};
    int status = 0;
    g_autoptr(GError) cause = NULL;
    g_autoptr(json_t) answer = sp_client_call(api, &request, &status, &cause);
    bool unknown = g_error_matches(cause, SP_ERROR, SP_ERROR_UNAVAILABLE);
    bool ok = false;
    if (answer && status == 201) {
        /* Waited for: the operation has ended, and the sandbox is as it is now. */
        g_autoptr(json_t) ended =
            sp_client_wait_operation(api, json_object_get(answer, "operation"), 0, cancel, &cause);
        ok = ended != NULL;
    } else if (answer) {
        g_autoptr(json_t) ended = sp_client_wait_operation(
            api, json_object_get(answer, "operation"), CREATE_WAIT_S * 1000, cancel, &cause);
        ok = ended && refresh(api, answer, ended, &cause);
    }
    if (ok)
        return g_steal_pointer(&answer);
    if (answer || unknown)
        undo_create(api, &request, answer);
    g_propagate_error(error, g_steal_pointer(&cause));
    return NULL;
}
