/* `space fork`: children that begin where a sandbox is; prints the ids of those that run. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/change.h"
#include "cli/output.h"
#include "cli/sandbox_options.h"
#include "cli/verbs.h"

#define CLEAN_UP_WAIT_S 30

struct fork_options {
    struct sp_client_options client; /* first */
    int64_t count;
    bool no_memory;
};

#define OFFSET(member) offsetof(struct fork_options, member)
const struct sp_option sp_fork_options[] = {
    {"count", 'n', SP_OPTION_INT, OFFSET(count), "N", "number of children (default 1)", 1},
    {"no-memory", 0, SP_OPTION_FLAG, OFFSET(no_memory), NULL,
     "children get a copy of the disk only, and start afresh", 0},
    SP_OPTIONS_CLIENT,
    {0},
};
const size_t sp_fork_options_bytes = sizeof(struct fork_options);

/* A child that could not be made leaves a row that says so: nobody asked for that. */
static void remove_failed(struct sp_client *api, json_t *result)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *path = sp_sandbox_path(result);
    g_autoptr(json_t) deleted = path ? sp_sandbox_delete(api, path, CLEAN_UP_WAIT_S, &error) : NULL;
    if (path && !deleted && !g_error_matches(error, SP_ERROR, SP_ERROR_NOT_FOUND))
        fprintf(stderr, "space: %s could not be deleted: %s\n", path + strlen("/v1/sandboxes/"),
                error->message);
}

static void refused_error(json_t *cause, GError **error)
{
    const char *name = json_string_value(json_object_get(cause, "code"));
    const char *message = json_string_value(json_object_get(cause, "message"));
    enum sp_error_code code = SP_ERROR_INTERNAL;
    if (name)
        sp_error_code_from_name(name, &code);
    g_set_error(error, SP_ERROR, (int)code, "a child was not made: %s",
                message ? message : "the server gave no reason");
}

/* Follows one child to its end; false when it does not run. */
static bool take_result(struct sp_client *api, json_t *result, bool json)
{
    g_autoptr(GError) error = NULL;
    json_t *cause = json_object_get(result, "error");
    if (cause) {
        refused_error(cause, &error);
    } else if (sp_change_follow(api, result, "sandbox", &error)) {
        g_autofree char *id = sp_output_text(json_object_get(result, "sandbox"), "id", NULL);
        if (!json)
            puts(id);
        return true;
    } else {
        json_object_set_new(result, "error",
                            json_pack("{s:s, s:o}", "code", sp_error_name(error), "message",
                                      sp_json_text(error->message)));
    }
    sp_output_error(error);
    remove_failed(api, result);
    return false;
}

int sp_fork_verb(const struct sp_invocation *invocation)
{
    const struct fork_options *o = invocation->options;
    g_autoptr(GError) error = NULL;
    SP_CLEANUP(sp_client_free_p) struct sp_client *api = sp_client_open(o->client.state, &error);
    g_autofree char *sandbox =
        api ? sp_client_resolve_sandbox(api, invocation->operands[0], &error) : NULL;
    if (!sandbox)
        return sp_output_error(error);
    g_autofree char *path = g_strconcat(sandbox, "/fork", NULL);
    g_autoptr(json_t) body = json_pack("{s:I}", "count", (json_int_t)(o->count ? o->count : 1));
    if (o->no_memory)
        json_object_set_new(body, "memory", json_false());
    g_autoptr(json_t) answer = sp_change_call(api, path, body, NULL, &error);
    json_t *results = json_object_get(answer, "results");
    if (answer && !json_is_array(results))
        g_set_error_literal(&error, SP_ERROR, SP_ERROR_INTERNAL, "the server named no children");
    if (error)
        return sp_output_error(error);
    bool all = true;
    size_t i;
    json_t *result;
    json_array_foreach(results, i, result)
    {
        all = take_result(api, result, o->client.json) && all;
    }
    if (o->client.json)
        sp_output_json(answer);
    return sp_output_finish(all ? 0 : SP_EXIT_PLATFORM);
}
