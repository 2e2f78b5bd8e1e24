#include "node/template_drop.h"

#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "disk/template.h"
#include "driver/record.h"
#include "node/builds.h"
#include "node/drivers.h"
#include "node/pool.h"
#include "node/table.h"

struct drop {
    struct sp_node *node;
    char **digests;
};

/* Whether a sandbox that the server has not described uses the template; unknown counts as yes. */
static bool record_uses(const char *run_dir, const char *digest)
{
    struct sp_record record = {0};
    g_autoptr(GError) error = NULL;
    if (!sp_record_load(run_dir, &record, &error))
        return !g_error_matches(error, SP_ERROR, SP_ERROR_NOT_FOUND);
    bool uses = g_strcmp0(record.template_digest, digest) == 0;
    sp_record_clear(&record);
    return uses;
}

static bool is_used(struct sp_node *node, const char *digest)
{
    g_autoptr(GPtrArray) all = sp_table_all(node->table);
    bool used = false;
    for (guint i = 0; i < all->len && !used; i++) {
        struct sp_sandbox *sandbox = all->pdata[i];
        g_mutex_lock(&node->table->lock);
        bool described = sandbox->spec != NULL;
        used = described && strcmp(sandbox->spec->template_digest, digest) == 0;
        g_mutex_unlock(&node->table->lock);
        if (!described)
            used = record_uses(sandbox->run_dir, digest);
    }
    return used;
}

static bool remove_one(struct sp_node *node, const char *digest, GError **error)
{
    static const char *const tiers[] = {"container", "microvm"};
    g_autofree char *dir = sp_template_dir(node->volume, digest);
    if (!sp_pool_forget_template(node->pool, digest, error))
        return false;
    for (size_t i = 0; i < G_N_ELEMENTS(tiers); i++) {
        struct sp_driver *driver = sp_drivers_find(node->drivers, tiers[i]);
        if (driver && driver->ops->forget_template &&
            !driver->ops->forget_template(driver, dir, error))
            return false;
    }
    return sp_template_remove(node->volume, digest, error);
}

static void *drop_thread(void *data)
{
    struct drop *drop = data;
    struct sp_node *node = drop->node;
    for (char **digest = drop->digests; *digest && !sp_node_stopping(node); digest++) {
        g_autoptr(GError) error = NULL;
        if (is_used(node, *digest))
            continue;
        if (remove_one(node, *digest, &error))
            sp_log(SP_LOG_INFO, "a deleted template is removed", "digest", *digest, NULL);
        else
            sp_log_error("a deleted template stays for now", error, "digest", *digest, NULL);
    }
    g_strfreev(drop->digests);
    g_free(drop);
    sp_builds_release(node->builds);
    return NULL;
}

void sp_template_drop(struct sp_node *node, json_t *list, unsigned builds_started)
{
    g_autoptr(GStrvBuilder) builder = g_strv_builder_new();
    json_t *item;
    size_t i;
    json_array_foreach(list, i, item)
    {
        const char *digest = json_string_value(item);
        g_autofree char *dir = digest ? sp_template_dir(node->volume, digest) : NULL;
        if (dir && access(dir, F_OK) == 0 && !is_used(node, digest))
            g_strv_builder_add(builder, digest);
    }
    g_auto(GStrv) digests = g_strv_builder_end(builder);
    if (!digests[0] || !sp_builds_hold(node->builds, builds_started))
        return;
    struct drop *drop = g_new0(struct drop, 1);
    drop->node = node;
    drop->digests = g_steal_pointer(&digests);
    g_thread_unref(g_thread_new("template-drop", drop_thread, drop));
}
