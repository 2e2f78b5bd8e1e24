/* Taking over what an earlier worker has made: everything by positive evidence (docs/lifecycle.md).
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "disk/saved.h"
#include "disk/template.h"
#include "driver/record.h"
#include "node/drivers.h"
#include "node/forms.h"
#include "node/lifecycle.h"
#include "node/run_dir.h"
#include "node/sessions.h"

/* Its defaults for commands; without a template (removed by hand) those of the agent serve. */
static void load_defaults(struct sp_sandbox *sandbox, const char *digest)
{
    g_autofree char *dir = digest ? sp_template_dir(sandbox->node->volume, digest) : NULL;
    struct sp_template_config config = {0};
    g_autoptr(GError) error = NULL;
    if (dir && sp_template_config_load(dir, &config, &error)) {
        g_mutex_lock(&sandbox->node->table->lock);
        sp_sandbox_set_defaults(sandbox, config.user, config.workdir);
        g_mutex_unlock(&sandbox->node->table->lock);
    } else {
        sp_log_error("the template of a sandbox cannot be read", error, "sandbox", sandbox->id,
                     NULL);
    }
    sp_template_config_clear(&config);
}

/* A slot that two records name: the second is still used by its processes, so it stays taken by the
 * first and both sandboxes go on. */
static void claim_slot(struct sp_sandbox *sandbox, int slot)
{
    struct sp_table *table = sandbox->node->table;
    g_mutex_lock(&table->lock);
    if (sandbox->slot < 0 && slot >= 0 && sp_slots_claim(&table->slots, (unsigned)slot))
        sandbox->slot = slot;
    g_mutex_unlock(&table->lock);
}

static void set_lost(struct sp_sandbox *sandbox, const char *reason)
{
    g_mutex_lock(&sandbox->node->table->lock);
    g_free(sandbox->lost_reason);
    sandbox->lost_reason = g_strdup(reason);
    sandbox->found.presence = SP_PRESENCE_ENDED;
    g_mutex_unlock(&sandbox->node->table->lock);
}

static void set_was_running(struct sp_sandbox *sandbox)
{
    g_mutex_lock(&sandbox->node->table->lock);
    sandbox->found.was_running = true;
    g_mutex_unlock(&sandbox->node->table->lock);
}

/* The file "suspended" is there: an instance is a leftover of a suspend that was interrupted behind
 * its commit, or of a wake before its own. */
static bool adopt_suspended(struct sp_sandbox *sandbox, const struct sp_run_suspended *suspended,
                            GError **error)
{
    struct sp_volume *volume = sandbox->node->volume;
    struct sp_saved_manifest manifest = {0};
    g_autofree char *dir = sp_saved_path(volume, sandbox->id);
    set_was_running(sandbox);
    if (!sp_saved_exists(volume, sandbox->id)) {
        if (!sp_saved_is_gone(volume, sandbox->id)) {
            g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "cannot look at the saved form of %s",
                        sandbox->id);
            return false;
        }
        claim_slot(sandbox, suspended->slot);
        set_lost(sandbox, "the saved form of the suspended sandbox is gone");
        return true;
    }
    if (!sp_forms_remove_instance(sandbox, error))
        return false;
    g_autoptr(GError) cause = NULL;
    int slot = suspended->slot;
    if (sp_saved_load(dir, &manifest, &cause)) {
        load_defaults(sandbox, manifest.template_digest);
        if (slot < 0)
            slot = (int)manifest.slot;
        sp_saved_manifest_clear(&manifest);
    } else {
        sp_log_error("the saved form of a sandbox cannot be read", cause, "sandbox", sandbox->id,
                     NULL);
    }
    claim_slot(sandbox, slot);
    sp_sandbox_set_presence(sandbox, SP_PRESENCE_SUSPENDED);
    sp_sessions_adopt(sandbox->node->sessions, sandbox->id, sandbox->run_dir);
    return true;
}

static bool take_over(struct sp_sandbox *sandbox, struct sp_driver *driver,
                      struct sp_instance *instance, bool paused, GError **error)
{
    struct sp_link *link = sp_lifecycle_link(sandbox, driver, instance, error);
    if (!link) {
        driver->ops->instance_free(instance);
        return false;
    }
    if (paused)
        sp_link_pause(link, true);
    g_mutex_lock(&sandbox->node->table->lock);
    sandbox->driver = driver;
    sandbox->instance = instance;
    sandbox->link = link;
    sandbox->found.presence = paused ? SP_PRESENCE_PAUSED : SP_PRESENCE_RUNNING;
    g_mutex_unlock(&sandbox->node->table->lock);
    sp_sessions_adopt(sandbox->node->sessions, sandbox->id, sandbox->run_dir);
    return true;
}

/* The mark says that its processes may be held inside: as long as nobody has let them go on it is
 * paused, and it is made so in fact. */
static bool settle_held(struct sp_sandbox *sandbox, struct sp_instance *instance, bool *paused,
                        GError **error)
{
    if (*paused || !sp_run_dir_has(sandbox->run_dir, SP_RUN_HELD))
        return true;
    if (!instance->driver->ops->pause(instance, error))
        return false;
    *paused = true;
    return true;
}

static bool adopt_recorded(struct sp_sandbox *sandbox, const struct sp_record *record,
                           GError **error)
{
    struct sp_driver *driver = sp_drivers_find(sandbox->node->drivers, record->tier);
    if (!driver) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "this node has no tier \"%s\"",
                    record->tier);
        return false;
    }
    bool was_ready = sp_run_dir_has(sandbox->run_dir, SP_RUN_READY);
    g_mutex_lock(&sandbox->node->table->lock);
    sandbox->found.was_running = was_ready;
    g_mutex_unlock(&sandbox->node->table->lock);
    if (!was_ready) { /* nothing of a user has ever run in it */
        sp_sandbox_set_presence(sandbox, SP_PRESENCE_PARTIAL);
        return true;
    }
    GError *cause = NULL;
    bool paused = false;
    struct sp_instance *instance = NULL;
    if (sp_failpoint("adopt.before_driver", &cause))
        instance = driver->ops->adopt(driver, sandbox->run_dir, &paused, &cause);
    if (instance && (!sp_failpoint("adopt.adopted", error) ||
                     !settle_held(sandbox, instance, &paused, error))) {
        driver->ops->instance_free(instance);
        return false;
    }
    if (instance) {
        load_defaults(sandbox, record->template_digest);
        return take_over(sandbox, driver, instance, paused, error);
    }
    if (!g_error_matches(cause, SP_ERROR, SP_ERROR_NOT_FOUND)) {
        g_propagate_error(error, cause);
        return false;
    }
    g_error_free(cause);
    sp_sandbox_set_presence(sandbox, SP_PRESENCE_ENDED);
    sp_sessions_adopt(sandbox->node->sessions, sandbox->id, sandbox->run_dir);
    return true;
}

/* Not suspended: a form of its name is what a suspend before its commit, or a wake behind it, has
 * left. */
static bool adopt_live(struct sp_sandbox *sandbox, GError **error)
{
    struct sp_record record = {0};
    GError *cause = NULL;
    if (!sp_forms_remove(sandbox->node, sandbox->id, error))
        return false;
    if (!sp_record_load(sandbox->run_dir, &record, &cause)) {
        bool nothing = g_error_matches(cause, SP_ERROR, SP_ERROR_NOT_FOUND);
        if (nothing) {
            sp_sandbox_set_presence(sandbox, SP_PRESENCE_PARTIAL);
            g_error_free(cause);
        } else {
            g_propagate_error(error, cause);
        }
        return nothing;
    }
    claim_slot(sandbox, (int)record.slot);
    bool known = adopt_recorded(sandbox, &record, error);
    sp_record_clear(&record);
    return known;
}

/* The marks decide what is a leftover and goes. */
static bool adopt_by_marks(struct sp_sandbox *sandbox, GError **error)
{
    struct sp_run_suspended suspended;
    if (!sp_run_dir_can_tell(sandbox->run_dir, error))
        return false;
    return sp_run_dir_get_suspended(sandbox->run_dir, &suspended)
               ? adopt_suspended(sandbox, &suspended, error)
               : adopt_live(sandbox, error);
}

bool sp_adopt(struct sp_sandbox *sandbox, GError **error)
{
    int64_t rollback = sp_run_dir_rollback(sandbox->run_dir);
    g_mutex_lock(&sandbox->node->table->lock);
    sandbox->found.rollback_generation = MAX(sandbox->found.rollback_generation, rollback);
    g_mutex_unlock(&sandbox->node->table->lock);
    bool known = adopt_by_marks(sandbox, error);
    if (!known)
        sp_sandbox_set_presence(sandbox, SP_PRESENCE_UNKNOWN);
    return known;
}
