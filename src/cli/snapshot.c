/* `space snapshot` with `ls`, `get` and `rm`, and `space rollback`. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/change.h"
#include "cli/client_options.h"
#include "cli/output.h"
#include "cli/verbs.h"

struct snapshot_options {
    struct sp_client_options client; /* first */
    char *name;
    bool no_memory;
};
struct snapshot_ls_options {
    struct sp_client_options client; /* first */
    char *sandbox;
};

const struct sp_option sp_snapshot_options[] = {
    {"name", 'n', SP_OPTION_STRING, offsetof(struct snapshot_options, name), "NAME",
     "name that the snapshot can be called by", 0},
    {"no-memory", 0, SP_OPTION_FLAG, offsetof(struct snapshot_options, no_memory), NULL,
     "keep the disk only", 0},
    SP_OPTIONS_CLIENT,
    {0},
};
const size_t sp_snapshot_options_bytes = sizeof(struct snapshot_options);
const struct sp_option sp_snapshot_ls_options[] = {
    {"sandbox", 0, SP_OPTION_STRING, offsetof(struct snapshot_ls_options, sandbox), "ID",
     "only those of this sandbox", 0},
    SP_OPTIONS_CLIENT,
    {0},
};
const size_t sp_snapshot_ls_options_bytes = sizeof(struct snapshot_ls_options);
const struct sp_option sp_snapshot_get_options[] = {SP_OPTIONS_CLIENT, {0}};
const size_t sp_snapshot_get_options_bytes = sizeof(struct sp_client_options);
const struct sp_option sp_snapshot_rm_options[] = {SP_OPTIONS_CLIENT, {0}};
const size_t sp_snapshot_rm_options_bytes = sizeof(struct sp_client_options);
const struct sp_option sp_rollback_options[] = {SP_OPTIONS_CLIENT, {0}};
const size_t sp_rollback_options_bytes = sizeof(struct sp_client_options);

int sp_snapshot_verb(const struct sp_invocation *invocation)
{
    const struct snapshot_options *o = invocation->options;
    g_autoptr(GError) error = NULL;
    SP_CLEANUP(sp_client_free_p) struct sp_client *api = sp_client_open(o->client.state, &error);
    g_autofree char *sandbox =
        api ? sp_client_resolve_sandbox(api, invocation->operands[0], &error) : NULL;
    if (!sandbox)
        return sp_output_error(error);
    g_autofree char *path = g_strconcat(sandbox, "/snapshots", NULL);
    g_autoptr(json_t) body = json_object();
    if (o->name)
        json_object_set_new(body, "name", sp_json_text(o->name));
    if (o->no_memory)
        json_object_set_new(body, "memory", json_false());
    g_autoptr(json_t) answer = sp_change_call(api, path, body, "snapshot", &error);
    if (!answer)
        return sp_output_error(error);
    if (o->client.json) {
        sp_output_json(answer);
    } else {
        g_autofree char *id = sp_output_text(json_object_get(answer, "snapshot"), "id", NULL);
        puts(id);
    }
    return sp_output_finish(0);
}

static char *size_text(json_t *snapshot)
{
    json_t *size = json_object_get(snapshot, "size_bytes");
    return json_is_integer(size) && json_integer_value(size) >= 0
               ? g_format_size((guint64)json_integer_value(size))
               : g_strdup("-");
}

static void print_snapshots(json_t *list)
{
    static const char *const titles[] = {"ID",       "NAME",   "STATE", "SANDBOX",
                                         "PARENT",   "MEMORY", "SIZE",  "ISOLATION",
                                         "TEMPLATE", "AGE",    NULL};
    struct sp_text_table *table = sp_text_table_new(titles);
    size_t i;
    json_t *s;
    json_array_foreach(json_object_get(list, "items"), i, s)
    {
        bool memory = json_is_true(json_object_get(s, "memory"));
        char *cells[] = {sp_output_text(s, "id", NULL),
                         sp_output_text(s, "name", NULL),
                         sp_output_text(s, "state", NULL),
                         sp_output_text(s, "sandbox_id", NULL),
                         sp_output_text(s, "parent_id", NULL),
                         g_strdup(memory ? "yes" : "no"),
                         size_text(s),
                         sp_output_text(s, "isolation", NULL),
                         sp_output_text(s, "template", NULL),
                         sp_output_age(json_object_get(s, "created_at"))};
        sp_text_table_add(table, cells);
    }
    sp_text_table_print(table);
}

int sp_snapshot_ls_verb(const struct sp_invocation *invocation)
{
    const struct snapshot_ls_options *o = invocation->options;
    g_autoptr(GError) error = NULL;
    SP_CLEANUP(sp_client_free_p) struct sp_client *api = sp_client_open(o->client.state, &error);
    if (!api)
        return sp_output_error(error);
    g_autoptr(GString) path = g_string_new("/v1/snapshots");
    if (o->sandbox) {
        /* The snapshots of a sandbox may outlive it: an id is not looked up. */
        g_autofree char *sandbox = sp_client_resolve_sandbox(api, o->sandbox, &error);
        if (!sandbox)
            return sp_output_error(error);
        g_string_append_printf(path, "?sandbox_id=%s", sandbox + strlen("/v1/sandboxes/"));
    }
    g_autoptr(json_t) list = sp_client_list(api, path->str, &error);
    if (!list)
        return sp_output_error(error);
    if (o->client.json)
        sp_output_json(list);
    else
        print_snapshots(list);
    return sp_output_finish(0);
}

static char *snapshot_path(struct sp_client *api, const char *id_or_name, GError **error)
{
    g_autofree char *id = sp_change_resolve_snapshot(api, id_or_name, error);
    return id ? g_strconcat("/v1/snapshots/", id, NULL) : NULL;
}

int sp_snapshot_get_verb(const struct sp_invocation *invocation)
{
    const struct sp_client_options *o = invocation->options;
    g_autoptr(GError) error = NULL;
    SP_CLEANUP(sp_client_free_p) struct sp_client *api = sp_client_open(o->state, &error);
    g_autofree char *path = api ? snapshot_path(api, invocation->operands[0], &error) : NULL;
    g_autoptr(json_t) snapshot = path ? sp_client_get(api, path, &error) : NULL;
    if (!snapshot)
        return sp_output_error(error);
    if (o->json)
        sp_output_json(snapshot);
    else
        sp_output_members(snapshot);
    return sp_output_finish(0);
}

int sp_snapshot_rm_verb(const struct sp_invocation *invocation)
{
    const struct sp_client_options *o = invocation->options;
    g_autoptr(GError) error = NULL;
    SP_CLEANUP(sp_client_free_p) struct sp_client *api = sp_client_open(o->state, &error);
    if (!api)
        return sp_output_error(error);
    bool all = true;
    for (char **id = invocation->operands; *id; id++) {
        g_autoptr(GError) cause = NULL;
        g_autofree char *path = snapshot_path(api, *id, &cause);
        g_autoptr(json_t) answer =
            path ? sp_change_request(api, "DELETE", path, NULL, NULL, &cause) : NULL;
        if (!answer)
            sp_output_error(cause);
        else if (o->json)
            sp_output_json(answer);
        else
            puts(path + strlen("/v1/snapshots/"));
        all = all && answer;
    }
    return sp_output_finish(all ? 0 : SP_EXIT_PLATFORM);
}

int sp_rollback_verb(const struct sp_invocation *invocation)
{
    const struct sp_client_options *o = invocation->options;
    g_autoptr(GError) error = NULL;
    SP_CLEANUP(sp_client_free_p) struct sp_client *api = sp_client_open(o->state, &error);
    g_autofree char *sandbox =
        api ? sp_client_resolve_sandbox(api, invocation->operands[0], &error) : NULL;
    g_autofree char *snapshot =
        sandbox ? sp_change_resolve_snapshot(api, invocation->operands[1], &error) : NULL;
    if (!snapshot)
        return sp_output_error(error);
    g_autofree char *path = g_strconcat(sandbox, "/rollback", NULL);
    g_autoptr(json_t) body = json_pack("{s:s}", "snapshot_id", snapshot);
    g_autoptr(json_t) answer = sp_change_call(api, path, body, "sandbox", &error);
    if (!answer)
        return sp_output_error(error);
    if (o->json)
        sp_output_json(answer);
    else
        puts(sandbox + strlen("/v1/sandboxes/"));
    return sp_output_finish(0);
}
