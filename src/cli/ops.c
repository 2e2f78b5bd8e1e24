/* `space ops`: operations, or one of them with the time of each step. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/ids.h"
#include "cli/client.h"
#include "cli/client_options.h"
#include "cli/output.h"
#include "cli/verbs.h"

struct ops_options {
    struct sp_client_options client; /* first */
    char *sandbox;
    char *with_state;
    char *kind;
};

#define OFFSET(member) offsetof(struct ops_options, member)
const struct sp_option sp_ops_options[] = {
    {"sandbox", 0, SP_OPTION_STRING, OFFSET(sandbox), "ID", "only those of this sandbox", 0},
    {"with-state", 's', SP_OPTION_STRING, OFFSET(with_state), "STATE",
     "only those in this state (pending, running, succeeded, failed)", 0},
    {"kind", 'k', SP_OPTION_STRING, OFFSET(kind), "KIND",
     "only those of this kind (create, delete, …)", 0},
    SP_OPTIONS_CLIENT,
    {0},
};
const size_t sp_ops_options_bytes = sizeof(struct ops_options);

static void print_operations(json_t *list)
{
    static const char *const titles[] = {"ID", "KIND", "SANDBOX", "STATE", "AGE", "ERROR", NULL};
    struct sp_text_table *table = sp_text_table_new(titles);
    size_t i;
    json_t *op;
    json_array_foreach(json_object_get(list, "items"), i, op)
    {
        char *cells[] = {sp_output_text(op, "id", NULL),
                         sp_output_text(op, "kind", NULL),
                         sp_output_text(op, "sandbox_id", NULL),
                         sp_output_text(op, "state", NULL),
                         sp_output_age(json_object_get(op, "created_at")),
                         sp_output_text(op, "error", "message")};
        sp_text_table_add(table, cells);
    }
    sp_text_table_print(table);
}

static void print_operation(json_t *op)
{
    static const char *const names[] = {"id",         "kind",       "sandbox_id", "state",
                                        "created_at", "started_at", "finished_at"};
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *text = sp_output_text(op, names[i], NULL);
        printf("%-12s %s\n", names[i], text);
    }
    g_autofree char *message = sp_output_text(op, "error", "message");
    if (strcmp(message, "-") != 0)
        printf("%-12s %s\n", "error", message);
    size_t i;
    json_t *step;
    json_array_foreach(json_object_get(op, "steps"), i, step)
    {
        g_autofree char *name = sp_output_text(step, "name", NULL);
        g_autofree char *ms = sp_output_text(step, "duration_ms", NULL);
        printf("  %-24s %8s ms\n", name, ms);
    }
}

static void add_query(GString *path, const char *name, const char *value)
{
    if (!value)
        return;
    g_string_append_printf(path, "%c%s=", strchr(path->str, '?') ? '&' : '?', name);
    g_string_append_uri_escaped(path, value, NULL, FALSE);
}

static json_t *fetch(struct sp_client *api, const struct sp_invocation *invocation, GError **error)
{
    const struct ops_options *o = invocation->options;
    g_autoptr(GString) path = g_string_new("/v1/operations");
    if (invocation->n_operands) {
        if (!sp_id_valid(invocation->operands[0], "op")) {
            g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                        "\"%s\" is no operation id (op_…)", invocation->operands[0]);
            return NULL;
        }
        g_string_append_printf(path, "/%s", invocation->operands[0]);
        return sp_client_get(api, path->str, error);
    }
    add_query(path, "sandbox_id", o->sandbox);
    add_query(path, "state", o->with_state);
    add_query(path, "kind", o->kind);
    return sp_client_list(api, path->str, error);
}

int sp_ops_verb(const struct sp_invocation *invocation)
{
    const struct ops_options *o = invocation->options;
    g_autoptr(GError) error = NULL;
    SP_CLEANUP(sp_client_free_p) struct sp_client *api = sp_client_open(o->client.state, &error);
    if (!api)
        return sp_output_error(error);
    g_autoptr(json_t) value = fetch(api, invocation, &error);
    if (!value)
        return sp_output_error(error);
    if (o->client.json)
        sp_output_json(value);
    else if (invocation->n_operands)
        print_operation(value);
    else
        print_operations(value);
    return sp_output_finish(0);
}
