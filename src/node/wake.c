/* Wake: a suspended sandbox goes on from its saved form. */
#include "base/error.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/time.h"
#include "disk/saved.h"
#include "node/changes.h"
#include "node/forms.h"
#include "node/making.h"
#include "node/reconcile.h"
#include "node/run_dir.h"
#include "node/steps.h"

#define PING_MS 30000

struct waking {
    struct sp_sandbox *sandbox;
    struct sp_run_suspended suspended; /* memory: as the form itself says */
    struct sp_making making;
};

static bool check_form(struct waking *w, GError **error)
{
    const struct sp_driver_ops *ops = w->making.driver->ops;
    struct sp_saved_manifest manifest = {0};
    if (!sp_saved_load(w->making.saved_dir, &manifest, error)) {
        g_prefix_error(error, "its saved form: ");
        return false;
    }
    w->suspended.memory = manifest.memory;
    sp_saved_manifest_clear(&manifest);
    return !w->suspended.memory || !ops->check_saved ||
           ops->check_saved(w->making.driver, w->making.saved_dir, error);
}

/* Its own if that is known; else any. */
static bool take_slot(struct sp_sandbox *sandbox, GError **error)
{
    struct sp_table *table = sandbox->node->table;
    g_mutex_lock(&table->lock);
    if (sandbox->slot < 0)
        sandbox->slot = sp_slots_take(&table->slots);
    bool fine = sandbox->slot >= 0;
    sandbox->gone = false; /* the end of the link to come has not been seen */
    g_mutex_unlock(&table->lock);
    if (!fine)
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE,
                    "the node has no room for more sandboxes");
    return fine;
}

static bool ping(struct waking *w, GError **error)
{
    int64_t began = sp_time_monotonic_us();
    if (!sp_link_ping(w->making.link, began + PING_MS * (int64_t)1000, error))
        return false;
    sp_steps_since(w->making.steps, "ping", began);
    return true;
}

static bool start(struct waking *w, GError **error)
{
    struct sp_making *m = &w->making;
    if (!sp_forms_remove_instance(w->sandbox, error) || !sp_making_template(m, error) ||
        !check_form(w, error) || !take_slot(w->sandbox, error))
        return false;
    m->slot = (unsigned)w->sandbox->slot;
    m->slot_at = &w->sandbox->slot;
    return sp_failpoint("wake.before_create", error) && sp_making_instance(m, error) &&
           sp_failpoint("wake.created", error) && sp_sandbox_check_wanted(w->sandbox, error) &&
           sp_making_link(m, error) && sp_failpoint("wake.linked", error) &&
           sp_sandbox_check_wanted(w->sandbox, error) && sp_making_identity(m, error) &&
           sp_failpoint("wake.identified", error) &&
           (w->suspended.memory ? ping(w, error) : sp_making_ready(m, false, error)) &&
           sp_sandbox_check_wanted(w->sandbox, error);
}

/* From here on it runs. */
static bool commit(struct waking *w, GError **error)
{
    const char *run_dir = w->sandbox->run_dir;
    if (!sp_failpoint("wake.before_commit", error))
        return false;
    /* Without memory it is a fresh start, which a restarted worker keeps as well. */
    if (!sp_run_dir_put(run_dir, SP_RUN_READY, "", false, error))
        return false;
    if (!sp_run_dir_drop(run_dir, SP_RUN_SUSPENDED, true, error)) {
        sp_run_dir_put_suspended(run_dir, &w->suspended, NULL); /* it may have gone half way */
        return false;
    }
    sp_failpoint("wake.committed", NULL);
    return true;
}

static void take_over(struct waking *w)
{
    struct sp_sandbox *sandbox = w->sandbox;
    g_mutex_lock(&sandbox->node->table->lock);
    sandbox->driver = w->making.driver;
    sandbox->instance = w->making.instance;
    sandbox->link = w->making.link;
    sandbox->found.presence = SP_PRESENCE_RUNNING;
    sandbox->found.was_running = true;
    sp_sandbox_set_defaults(sandbox, w->making.config.user, w->making.config.workdir);
    g_mutex_unlock(&sandbox->node->table->lock);

    g_autoptr(GError) error = NULL;
    int64_t began = sp_time_monotonic_us();
    if (!sp_forms_remove(sandbox->node, sandbox->id, &error)) /* the next suspend tries again */
        sp_log_error("the saved form of a sandbox that was woken stays", error, "sandbox",
                     sandbox->id, NULL);
    sp_failpoint("wake.form_removed", NULL);
    sp_steps_since(w->making.steps, "remove_form", began);
}

/* It is still suspended. */
static void undo(struct waking *w)
{
    struct sp_sandbox *sandbox = w->sandbox;
    g_autoptr(GError) error = NULL;
    if (w->making.link)
        sp_link_stop(w->making.link, "the sandbox could not be woken");
    sp_link_unref(w->making.link);
    if (w->making.instance)
        w->making.driver->ops->instance_free(w->making.instance);
    if (!sp_forms_remove_instance(sandbox, &error)) /* the next wake or delete tries again */
        sp_log_error("left over after a wake that failed", error, "sandbox", sandbox->id, NULL);
}

bool sp_change_wake(struct sp_sandbox *sandbox, struct sp_sandbox_spec *spec, json_t *steps,
                    GError **error)
{
    g_autofree char *form = sp_saved_path(sandbox->node->volume, sandbox->id);
    struct waking w = {
        .sandbox = sandbox,
        .making = {.node = sandbox->node,
                   .id = sandbox->id,
                   .run_dir = sandbox->run_dir,
                   .spec = spec,
                   .saved_dir = form,
                   .saved_use = SP_SAVED_WAKE,
                   .steps = steps,
                   .on_gone = sp_reconcile_on_gone,
                   .gone_user = sandbox},
    };
    if (!sp_run_dir_get_suspended(sandbox->run_dir, &w.suspended)) {
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "it is not suspended");
        return false;
    }
    w.suspended.slot = sandbox->slot;
    bool fine = start(&w, error) && commit(&w, error);
    if (fine)
        take_over(&w);
    else
        undo(&w);
    sp_making_clear(&w.making);
    return fine;
}
