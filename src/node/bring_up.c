/* Making a sandbox: driver, link, identity, a real exec. */
#include "base/error.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "disk/saved.h"
#include "node/lifecycle.h"
#include "node/making.h"
#include "node/node.h"
#include "node/pool.h"
#include "node/reconcile.h"
#include "node/snapshots.h"

static bool take_slot(struct sp_sandbox *sandbox, GError **error)
{
    struct sp_table *table = sandbox->node->table;
    g_mutex_lock(&table->lock);
    sandbox->slot = sp_slots_take(&table->slots);
    bool have_slot = sandbox->slot >= 0;
    if (have_slot)
        sandbox->found.presence = SP_PRESENCE_PARTIAL;
    g_mutex_unlock(&table->lock);
    if (!have_slot)
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE,
                    "the node has no room for more sandboxes");
    return have_slot;
}

/* With a new link its end has not been seen. */
static void reset_gone(struct sp_sandbox *sandbox)
{
    g_mutex_lock(&sandbox->node->table->lock);
    sandbox->gone = false;
    g_mutex_unlock(&sandbox->node->table->lock);
}

struct sp_link *sp_lifecycle_link(struct sp_sandbox *sandbox, struct sp_driver *driver,
                                  struct sp_instance *instance, GError **error)
{
    reset_gone(sandbox);
    return sp_making_start_link(sandbox->id, instance, sp_reconcile_on_gone, sandbox, error);
}

/* A member of a pool has become the sandbox, or there is none. */
static bool claim(struct sp_sandbox *sandbox, struct sp_making *m)
{
    reset_gone(sandbox);
    if (!sp_pool_claim(sandbox->node->pool, m))
        return false;
    g_mutex_lock(&sandbox->node->table->lock);
    sandbox->slot = (int)m->slot;
    g_mutex_unlock(&sandbox->node->table->lock);
    return true;
}

/* Whether the snapshot that it is to be made from can be used here; *ret_memory: it goes on in the
 * middle of what ran there. */
static bool check_saved(struct sp_making *m, bool *ret_memory, GError **error)
{
    struct sp_saved_manifest manifest = {0};
    *ret_memory = false;
    if (!m->saved_dir)
        return true;
    if (!sp_saved_load(m->saved_dir, &manifest, error)) {
        g_prefix_error(error, "the snapshot: ");
        return false;
    }
    *ret_memory = manifest.memory;
    bool fine = g_strcmp0(manifest.tier, m->driver->ops->tier) == 0;
    if (!fine)
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION, "the snapshot is of the %s tier",
                    manifest.tier);
    sp_saved_manifest_clear(&manifest);
    return fine && (!*ret_memory || !m->driver->ops->check_saved ||
                    m->driver->ops->check_saved(m->driver, m->saved_dir, error));
}

static bool make(struct sp_sandbox *sandbox, struct sp_making *m, GError **error)
{
    bool with_memory;
    if (!sp_making_template(m, error))
        return false;
    if (!m->saved_dir && claim(sandbox, m))
        return true;
    if (!check_saved(m, &with_memory, error) || !take_slot(sandbox, error))
        return false;
    m->slot = (unsigned)sandbox->slot;
    m->slot_at = &sandbox->slot;
    reset_gone(sandbox);
    return sp_failpoint("create.before_dirs", error) && sp_making_dirs(m, error) &&
           sp_failpoint("create.before_driver", error) && sp_making_instance(m, error) &&
           sp_failpoint("create.driver_done", error) && sp_sandbox_check_wanted(sandbox, error) &&
           sp_making_link(m, error) && sp_failpoint("create.linked", error) &&
           sp_sandbox_check_wanted(sandbox, error) && sp_making_identity(m, error) &&
           sp_failpoint("create.identified", error) && sp_sandbox_check_wanted(sandbox, error) &&
           sp_making_ready(m, with_memory, error) && sp_failpoint("create.before_mark", error) &&
           sp_making_mark(m, error) && sp_failpoint("create.marked", error);
}

bool sp_bring_up(struct sp_sandbox *sandbox, struct sp_sandbox_spec *spec, json_t *steps,
                 GError **error)
{
    struct sp_table *table = sandbox->node->table;
    struct sp_making m = {
        .node = sandbox->node,
        .id = sandbox->id,
        .run_dir = sandbox->run_dir,
        .spec = spec,
        .steps = steps,
        .on_gone = sp_reconcile_on_gone,
        .gone_user = sandbox,
    };
    g_autofree char *form =
        spec->saved_from ? sp_saved_path(sandbox->node->volume, spec->saved_from) : NULL;
    m.saved_dir = form;
    m.saved_use = SP_SAVED_COPY;
    if (form && !sp_snapshots_hold(sandbox->node->snapshots, spec->saved_from, error))
        return false;
    if (!form)
        sp_pool_create_began(sandbox->node->pool, spec);
    bool fine = make(sandbox, &m, error);
    if (!form)
        sp_pool_create_ended(sandbox->node->pool, spec, fine);
    else
        sp_snapshots_release(sandbox->node->snapshots, spec->saved_from);
    g_mutex_lock(&table->lock);
    /* Also after a failure: sp_take_down() undoes what is there. */
    sandbox->driver = m.driver;
    sandbox->instance = m.instance;
    sandbox->link = m.link;
    if (fine) {
        sandbox->found.presence = SP_PRESENCE_RUNNING;
        sp_sandbox_set_defaults(sandbox, m.config.user, m.config.workdir);
    }
    g_mutex_unlock(&table->lock);
    sp_making_clear(&m);
    if (fine)
        return true;
    g_autoptr(GError) cause = NULL;
    if (!sp_take_down(sandbox, "the sandbox could not be started", &cause))
        sp_log_error("left over after a failed create", cause, "sandbox", sandbox->id, NULL);
    return false;
}
