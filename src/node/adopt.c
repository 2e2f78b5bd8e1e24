/* Taking over what an earlier worker has made. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "disk/template.h"
#include "driver/record.h"
#include "node/drivers.h"
#include "node/lifecycle.h"
#include "node/sessions.h"

static void set_presence(struct sp_sandbox *sandbox, enum sp_presence presence)
{
    g_mutex_lock(&sandbox->node->table->lock);
    sandbox->found.presence = presence;
    g_mutex_unlock(&sandbox->node->table->lock);
}

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

static bool take_over(struct sp_sandbox *sandbox, struct sp_driver *driver,
                      struct sp_instance *instance, GError **error)
{
    struct sp_link *link = sp_lifecycle_link(sandbox, driver, instance, error);
    if (!link) {
        driver->ops->instance_free(instance);
        return false;
    }
    g_mutex_lock(&sandbox->node->table->lock);
    sandbox->driver = driver;
    sandbox->instance = instance;
    sandbox->link = link;
    sandbox->found.presence = SP_PRESENCE_RUNNING;
    g_mutex_unlock(&sandbox->node->table->lock);
    sp_sessions_adopt(sandbox->node->sessions, sandbox->id, sandbox->run_dir);
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
    g_autofree char *marker = g_build_filename(sandbox->run_dir, "ready", NULL);
    bool was_ready = access(marker, F_OK) == 0;
    g_mutex_lock(&sandbox->node->table->lock);
    sandbox->found.was_running = was_ready;
    g_mutex_unlock(&sandbox->node->table->lock);
    if (!was_ready) { /* nothing of a user has ever run in it */
        set_presence(sandbox, SP_PRESENCE_PARTIAL);
        return true;
    }
    GError *cause = NULL;
    struct sp_instance *instance = driver->ops->adopt(driver, sandbox->run_dir, NULL, &cause);
    if (instance) {
        load_defaults(sandbox, record->template_digest);
        return take_over(sandbox, driver, instance, error);
    }
    if (!g_error_matches(cause, SP_ERROR, SP_ERROR_NOT_FOUND)) {
        g_propagate_error(error, cause);
        return false;
    }
    g_error_free(cause);
    set_presence(sandbox, SP_PRESENCE_ENDED);
    sp_sessions_adopt(sandbox->node->sessions, sandbox->id, sandbox->run_dir);
    return true;
}

bool sp_adopt(struct sp_sandbox *sandbox, GError **error)
{
    struct sp_record record = {0};
    GError *cause = NULL;
    if (!sp_record_load(sandbox->run_dir, &record, &cause)) {
        bool nothing = g_error_matches(cause, SP_ERROR, SP_ERROR_NOT_FOUND);
        set_presence(sandbox, nothing ? SP_PRESENCE_PARTIAL : SP_PRESENCE_UNKNOWN);
        if (nothing)
            g_error_free(cause);
        else
            g_propagate_error(error, cause);
        return nothing;
    }
    struct sp_table *table = sandbox->node->table;
    g_mutex_lock(&table->lock);
    if (sandbox->slot < 0) {
        /* A slot that two records name: the second is still used by its processes, so it stays
         * taken by the first and both sandboxes go on. */
        if (sp_slots_claim(&table->slots, record.slot))
            sandbox->slot = (int)record.slot;
    }
    g_mutex_unlock(&table->lock);
    bool known = adopt_recorded(sandbox, &record, error);
    if (!known)
        set_presence(sandbox, SP_PRESENCE_UNKNOWN);
    sp_record_clear(&record);
    return known;
}
