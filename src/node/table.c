#include "node/table.h"

#include <stddef.h>
#include <string.h>

#include "base/error.h"
#include "node/lenient.h"

struct sp_table *sp_table_new(void)
{
    struct sp_table *table = g_new0(struct sp_table, 1);
    g_mutex_init(&table->lock);
    table->by_id =
        g_hash_table_new_full(g_str_hash, g_str_equal, NULL, (GDestroyNotify)sp_sandbox_unref);
    return table;
}

void sp_table_free(struct sp_table *table)
{
    g_hash_table_destroy(table->by_id);
    g_mutex_clear(&table->lock);
    g_free(table);
}

struct sp_sandbox *sp_sandbox_ref(struct sp_sandbox *sandbox)
{
    g_atomic_int_inc(&sandbox->refs);
    return sandbox;
}

void sp_sandbox_unref(struct sp_sandbox *sandbox)
{
    if (!sandbox || !g_atomic_int_dec_and_test(&sandbox->refs))
        return;
    sp_link_unref(sandbox->link);
    sp_sandbox_spec_unref(sandbox->spec);
    g_free(sandbox->fail_code);
    g_free(sandbox->fail_message);
    g_free(sandbox->lost_reason);
    g_free(sandbox->rollback_snapshot);
    json_decref(sandbox->carried_steps);
    g_free(sandbox->run_dir);
    g_free(sandbox->user);
    g_free(sandbox->workdir);
    g_free(sandbox);
}

struct sp_sandbox_spec *sp_sandbox_spec_ref(struct sp_sandbox_spec *spec)
{
    g_atomic_int_inc(&spec->refs);
    return spec;
}

void sp_sandbox_spec_unref(struct sp_sandbox_spec *spec)
{
    if (!spec || !g_atomic_int_dec_and_test(&spec->refs))
        return;
    g_free(spec->template_digest);
    g_free(spec->isolation);
    g_free(spec->hostname);
    g_free(spec->user);
    g_strfreev(spec->env);
    g_free(spec->saved_from);
    g_free(spec);
}

#define AT(member) offsetof(struct sp_sandbox_spec, member)

struct sp_sandbox_spec *sp_sandbox_spec_decode(json_t *row, GError **error)
{
    static const struct sp_json_field spec_table[] = {
        {"template_digest", SP_JSON_STRING, AT(template_digest), 1, 128, .required = true},
        {"isolation", SP_JSON_STRING, AT(isolation), 1, 32, .required = true},
        {"hostname", SP_JSON_STRING, AT(hostname), 1, 64},
        {"user", SP_JSON_STRING, AT(user), 0, 64},
        {"env", SP_JSON_STRING_MAP, AT(env), 0, 4096},
        {"saved_from", SP_JSON_STRING, AT(saved_from), 1, SP_ID_MAX - 1},
        {NULL},
    };
    static const struct sp_json_field shape_table[] = {
        {"cpus", SP_JSON_NUMBER, offsetof(struct sp_shape, cpus), 0.001, 4096, .required = true},
        {"memory_mb", SP_JSON_INT, offsetof(struct sp_shape, memory_mb), 1, 1 << 30,
         .required = true},
        {"disk_mb", SP_JSON_INT, offsetof(struct sp_shape, disk_mb), 1, 1 << 30, .required = true},
        {"pids", SP_JSON_INT, offsetof(struct sp_shape, pids), 1, 1 << 22, .required = true},
        {NULL},
    };
    struct sp_sandbox_spec *spec = g_new0(struct sp_sandbox_spec, 1);
    spec->refs = 1;
    if (!sp_node_decode(row, spec_table, spec, error) ||
        !sp_node_decode(json_object_get(row, "resources"), shape_table, &spec->shape, error)) {
        sp_sandbox_spec_unref(spec);
        return NULL;
    }
    return spec;
}

bool sp_sandbox_doomed(struct sp_sandbox *sandbox)
{
    g_mutex_lock(&sandbox->node->table->lock);
    bool doomed = sandbox->wanted.known && sandbox->wanted.desired == SP_DESIRED_DELETED;
    g_mutex_unlock(&sandbox->node->table->lock);
    return doomed;
}

bool sp_sandbox_check_wanted(struct sp_sandbox *sandbox, GError **error)
{
    if (!sp_sandbox_doomed(sandbox))
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_CONFLICT, "the sandbox is being deleted");
    return false;
}

void sp_sandbox_set_presence(struct sp_sandbox *sandbox, enum sp_presence presence)
{
    g_mutex_lock(&sandbox->node->table->lock);
    sandbox->found.presence = presence;
    g_mutex_unlock(&sandbox->node->table->lock);
}

void sp_sandbox_set_defaults(struct sp_sandbox *sandbox, const char *user, const char *workdir)
{
    const char *own = sandbox->spec ? sandbox->spec->user : NULL;
    g_free(sandbox->user);
    g_free(sandbox->workdir);
    sandbox->user = g_strdup(own && *own ? own : user);
    sandbox->workdir = g_strdup(workdir);
}

struct sp_sandbox *sp_table_get_locked(struct sp_table *table, struct sp_node *node, const char *id)
{
    struct sp_sandbox *sandbox = g_hash_table_lookup(table->by_id, id);
    if (sandbox)
        return sandbox;
    sandbox = g_new0(struct sp_sandbox, 1);
    sandbox->refs = 1;
    sandbox->node = node;
    sandbox->slot = -1;
    sandbox->found.presence = SP_PRESENCE_ABSENT;
    g_strlcpy(sandbox->id, id, sizeof(sandbox->id));
    sandbox->run_dir = g_build_filename(node->sandbox_root, id, NULL);
    g_hash_table_insert(table->by_id, sandbox->id, sandbox);
    return sandbox;
}

char **sp_table_ids(struct sp_table *table)
{
    GPtrArray *ids = g_ptr_array_new();
    GHashTableIter iter;
    void *value;
    g_mutex_lock(&table->lock);
    g_hash_table_iter_init(&iter, table->by_id);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        struct sp_sandbox *sandbox = value;
        if (sandbox->found.presence != SP_PRESENCE_ABSENT)
            g_ptr_array_add(ids, g_strdup(sandbox->id));
    }
    g_mutex_unlock(&table->lock);
    g_ptr_array_add(ids, NULL);
    return (char **)g_ptr_array_free(ids, FALSE);
}

GPtrArray *sp_table_all(struct sp_table *table)
{
    GPtrArray *all = g_ptr_array_new_with_free_func((GDestroyNotify)sp_sandbox_unref);
    GHashTableIter iter;
    void *value;
    g_mutex_lock(&table->lock);
    g_hash_table_iter_init(&iter, table->by_id);
    while (g_hash_table_iter_next(&iter, NULL, &value))
        g_ptr_array_add(all, sp_sandbox_ref(value));
    g_mutex_unlock(&table->lock);
    return all;
}

bool sp_table_use(struct sp_table *table, const char *id, struct sp_sandbox_use *ret,
                  GError **error)
{
    bool fine = false;
    g_mutex_lock(&table->lock);
    struct sp_sandbox *sandbox = g_hash_table_lookup(table->by_id, id);
    if (!sandbox) {
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "no sandbox %s on this node", id);
    } else if (sandbox->wanted.known && sandbox->wanted.desired == SP_DESIRED_DELETED) {
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "sandbox %s is being deleted", id);
    } else if (sandbox->found.presence != SP_PRESENCE_RUNNING || !sandbox->link) {
        bool paused = sandbox->found.presence == SP_PRESENCE_PAUSED;
        bool suspended = sandbox->found.presence == SP_PRESENCE_SUSPENDED;
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION, "sandbox %s is %s", id,
                    paused      ? "paused: wake it first"
                    : suspended ? "suspended: wake it first"
                                : "not running");
    } else {
        *ret = (struct sp_sandbox_use){
            .link = sp_link_ref(sandbox->link),
            .user = g_strdup(sandbox->user),
            .workdir = g_strdup(sandbox->workdir),
        };
        fine = true;
    }
    g_mutex_unlock(&table->lock);
    return fine;
}

void sp_sandbox_use_clear(struct sp_sandbox_use *use)
{
    sp_link_unref(use->link);
    g_free(use->user);
    g_free(use->workdir);
}
