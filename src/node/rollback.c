/* Rollback: a snapshot takes the place of a sandbox, suspended; the wake follows. */
#include <inttypes.h>

#include "base/error.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/time.h"
#include "disk/saved.h"
#include "node/changes.h"
#include "node/drivers.h"
#include "node/forms.h"
#include "node/run_dir.h"
#include "node/snapshots.h"
#include "node/steps.h"

/* Whether the snapshot is there and could be woken here. */
static bool check(struct sp_sandbox *sandbox, const char *snapshot_id, bool *ret_memory,
                  GError **error)
{
    struct sp_node *node = sandbox->node;
    struct sp_saved_manifest manifest = {0};
    g_autofree char *dir = sp_saved_path(node->volume, snapshot_id);
    if (!sp_saved_load(dir, &manifest, error)) {
        g_prefix_error(error, "snapshot %s: ", snapshot_id);
        return false;
    }
    struct sp_driver *driver = sp_drivers_get(node->drivers, manifest.tier, error);
    bool fine = driver && (!manifest.memory || !driver->ops->check_saved ||
                           driver->ops->check_saved(driver, dir, error));
    *ret_memory = manifest.memory;
    sp_saved_manifest_clear(&manifest);
    return fine;
}

static bool note_done(struct sp_sandbox *sandbox, int64_t generation, GError **error)
{
    g_autofree char *text = g_strdup_printf("%" PRId64 "\n", generation);
    g_mutex_lock(&sandbox->node->table->lock);
    sandbox->found.rollback_generation = MAX(sandbox->found.rollback_generation, generation);
    g_mutex_unlock(&sandbox->node->table->lock);
    return sp_run_dir_put(sandbox->run_dir, SP_RUN_ROLLBACK, text, true, error);
}

/* Puts a copy of the snapshot there under the sandbox's own name, and makes it the truth. What ran
 * still runs then, as a leftover. A suspended sandbox has a whole form at any moment. */
static bool replace(struct sp_sandbox *sandbox, const char *snapshot_id, bool memory,
                    GError **error)
{
    struct sp_volume *volume = sandbox->node->volume;
    bool was_suspended = sandbox->found.presence == SP_PRESENCE_SUSPENDED;
    struct sp_run_suspended suspended = {.slot = sandbox->slot, .memory = memory};
    if (!sp_failpoint("rollback.before_copy", error) ||
        !sp_saved_copy(volume, snapshot_id, sandbox->id, sandbox->id, true, error))
        return false;
    if (sp_failpoint("rollback.copied", error) && sp_sandbox_check_wanted(sandbox, error) &&
        sp_failpoint("rollback.before_commit", error) &&
        sp_run_dir_put_suspended(sandbox->run_dir, &suspended, error)) {
        sp_failpoint("rollback.committed", NULL);
        return true;
    }
    if (was_suspended) { /* what lies there is the snapshot by now, and the old file holds for it */
        g_clear_error(error);
        return true;
    }
    g_autoptr(GError) cause = NULL;
    if (!sp_forms_remove(sandbox->node, sandbox->id, &cause))
        sp_log_error("a saved form stays after a rollback that failed", cause, "sandbox",
                     sandbox->id, NULL);
    return false;
}

/* The snapshot is not removed meanwhile: a copy of half of it would be one of a damaged form. */
static bool copy_held(struct sp_sandbox *sandbox, const char *snapshot_id, bool *ret_memory,
                      GError **error)
{
    struct sp_snapshots *snapshots = sandbox->node->snapshots;
    if (!sp_snapshots_hold(snapshots, snapshot_id, error))
        return false;
    bool fine = check(sandbox, snapshot_id, ret_memory, error) &&
                replace(sandbox, snapshot_id, *ret_memory, error);
    sp_snapshots_release(snapshots, snapshot_id);
    return fine;
}

bool sp_change_rollback(struct sp_sandbox *sandbox, const char *snapshot_id, int64_t generation,
                        json_t *steps, GError **error)
{
    int64_t began = sp_time_monotonic_us();
    bool memory = false;
    g_autoptr(GError) cause = NULL;
    bool fine =
        sp_failpoint("rollback.before", error) && copy_held(sandbox, snapshot_id, &memory, error);
    if (fine) {
        sp_steps_since(steps, "copy", began);
        sp_change_let_go(sandbox, memory, steps);
    }
    if (!fine && sp_node_stopping(sandbox->node))
        return false; /* the next worker tries */
    /* If that cannot be written, a restarted worker does the same again: no harm. */
    if (!note_done(sandbox, generation, &cause))
        sp_log_error("a rollback is not recorded as done", cause, "sandbox", sandbox->id, NULL);
    sp_failpoint("rollback.done", NULL);
    return fine;
}
