/* `space ls` and `space get`. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/client.h"
#include "cli/client_options.h"
#include "cli/output.h"
#include "cli/verbs.h"

struct ls_options {
    struct sp_client_options client; /* first */
    char *with_state;
    char *template_ref;
    char **metadata;
};

#define OFFSET(member) offsetof(struct ls_options, member)
const struct sp_option sp_ls_options[] = {
    {"with-state", 's', SP_OPTION_STRING, OFFSET(with_state), "STATE",
     "only those in this state (running, paused, …)", 0},
    {"template", 0, SP_OPTION_STRING, OFFSET(template_ref), "NAME:TAG",
     "only those from this template", 0},
    {"metadata", 0, SP_OPTION_LIST, OFFSET(metadata), "K=V",
     "only those with this label; may be repeated", 0},
    SP_OPTIONS_CLIENT,
    {0},
};
const size_t sp_ls_options_bytes = sizeof(struct ls_options);

const struct sp_option sp_get_options[] = {SP_OPTIONS_CLIENT, {0}};
const size_t sp_get_options_bytes = sizeof(struct sp_client_options);

static void add_query(GString *path, const char *name, const char *value)
{
    if (!value)
        return;
    g_string_append_c(path, strchr(path->str, '?') ? '&' : '?');
    g_string_append(path, name);
    g_string_append_c(path, '=');
    g_string_append_uri_escaped(path, value, NULL, FALSE);
}

static char *list_path(const struct ls_options *o)
{
    g_autoptr(GString) path = g_string_new("/v1/sandboxes");
    add_query(path, "state", o->with_state);
    add_query(path, "template", o->template_ref);
    for (char **pair = o->metadata; pair && *pair; pair++) {
        const char *equals = strchr(*pair, '=');
        g_autofree char *key = equals ? g_strndup(*pair, (gsize)(equals - *pair)) : g_strdup(*pair);
        g_autofree char *escaped = g_uri_escape_string(key, NULL, FALSE);
        g_autofree char *name = g_strconcat("metadata.", escaped, NULL);
        add_query(path, name, equals ? equals + 1 : "");
    }
    return g_strdup(path->str);
}

static void print_sandboxes(json_t *list)
{
    static const char *const titles[] = {"ID",   "NAME",   "STATE", "ISOLATION", "TEMPLATE",
                                         "CPUS", "MEMORY", "AGE",   NULL};
    struct sp_text_table *table = sp_text_table_new(titles);
    size_t i;
    json_t *s;
    json_array_foreach(json_object_get(list, "items"), i, s)
    {
        g_autofree char *mb = sp_output_text(s, "resources", "memory_mb");
        char *cells[] = {
            sp_output_text(s, "id", NULL),       sp_output_text(s, "name", NULL),
            sp_output_text(s, "state", NULL),    sp_output_text(s, "isolation", NULL),
            sp_output_text(s, "template", NULL), sp_output_text(s, "resources", "cpus"),
            g_strconcat(mb, " MB", NULL),        sp_output_age(json_object_get(s, "created_at"))};
        sp_text_table_add(table, cells);
    }
    sp_text_table_print(table);
}

int sp_ls_verb(const struct sp_invocation *invocation)
{
    const struct ls_options *o = invocation->options;
    g_autoptr(GError) error = NULL;
    SP_CLEANUP(sp_client_free_p) struct sp_client *api = sp_client_open(o->client.state, &error);
    if (!api)
        return sp_output_error(error);
    g_autofree char *path = list_path(o);
    g_autoptr(json_t) list = sp_client_list(api, path, &error);
    if (!list)
        return sp_output_error(error);
    if (o->client.json)
        sp_output_json(list);
    else
        print_sandboxes(list);
    return sp_output_finish(0);
}

/* "2 sessions, 1 attached, 0 executions, 3.5 % of a core": why it does or does not count as idle.
 */
static void say_busy(json_t *sandbox)
{
    json_t *busy = json_object_get(sandbox, "busy");
    if (!json_is_object(busy))
        return;
    g_autofree char *sessions = sp_output_text(busy, "sessions", NULL);
    g_autofree char *attached = sp_output_text(busy, "attached", NULL);
    g_autofree char *executions = sp_output_text(busy, "executions", NULL);
    g_autofree char *cpu = sp_output_text(busy, "cpu", NULL);
    g_autofree char *text =
        g_strdup_printf("sessions %s, attached %s, executions %s, cpu %s%s", sessions, attached,
                        executions, cpu, strcmp(cpu, "-") == 0 ? "" : " % of a core");
    json_object_set_new(sandbox, "busy", json_string(text));
}

int sp_get_verb(const struct sp_invocation *invocation)
{
    const struct sp_client_options *o = invocation->options;
    g_autoptr(GError) error = NULL;
    SP_CLEANUP(sp_client_free_p) struct sp_client *api = sp_client_open(o->state, &error);
    if (!api)
        return sp_output_error(error);
    g_autofree char *path = sp_client_resolve_sandbox(api, invocation->operands[0], &error);
    g_autoptr(json_t) sandbox = path ? sp_client_get(api, path, &error) : NULL;
    if (!sandbox)
        return sp_output_error(error);
    if (o->json) {
        sp_output_json(sandbox);
    } else {
        say_busy(sandbox);
        sp_output_members(sandbox);
    }
    return sp_output_finish(0);
}
