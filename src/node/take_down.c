/* Removing a sandbox. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "disk/tree.h"
#include "driver/record.h"
#include "node/drivers.h"
#include "node/lifecycle.h"
#include "node/sessions.h"

/* The driver that the record names; *ret_nothing: there is no record, so nothing was made. */
static struct sp_driver *recorded_driver(struct sp_sandbox *sandbox, bool *ret_nothing,
                                         GError **error)
{
    struct sp_record record = {0};
    GError *cause = NULL;
    *ret_nothing = false;
    if (!sp_record_load(sandbox->run_dir, &record, &cause)) {
        if (g_error_matches(cause, SP_ERROR, SP_ERROR_NOT_FOUND)) {
            g_error_free(cause);
            *ret_nothing = true;
        } else {
            g_propagate_error(error, cause);
        }
        return NULL;
    }
    struct sp_driver *driver = sp_drivers_find(sandbox->node->drivers, record.tier);
    if (!driver)
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "the record names a tier \"%s\"",
                    record.tier);
    sp_record_clear(&record);
    return driver;
}

static bool destroy_resources(struct sp_sandbox *sandbox, GError **error)
{
    if (access(sandbox->run_dir, F_OK) < 0 && errno == ENOENT)
        return true;
    bool nothing;
    struct sp_driver *driver = recorded_driver(sandbox, &nothing, error);
    if (!driver && !nothing)
        return false;
    if (driver && !driver->ops->destroy(driver, sandbox->run_dir, error))
        return false;
    if (sp_tree_remove(sandbox->run_dir) == 0)
        return true;
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "removing %s", sandbox->run_dir);
    return false;
}

bool sp_take_down(struct sp_sandbox *sandbox, const char *reason, GError **error)
{
    struct sp_table *table = sandbox->node->table;
    g_mutex_lock(&table->lock);
    struct sp_link *link = g_steal_pointer(&sandbox->link);
    struct sp_instance *instance = g_steal_pointer(&sandbox->instance);
    if (sandbox->found.presence == SP_PRESENCE_RUNNING)
        sandbox->found.presence = SP_PRESENCE_PARTIAL; /* nobody finds it any more */
    g_mutex_unlock(&table->lock);

    if (link)
        sp_link_stop(link, reason);
    sp_link_unref(link);
    if (instance)
        instance->driver->ops->instance_free(instance);
    sp_sessions_lose(sandbox->node->sessions, sandbox->id, reason);

    bool gone = destroy_resources(sandbox, error);
    g_mutex_lock(&table->lock);
    if (gone) {
        sandbox->found.presence = SP_PRESENCE_ABSENT;
        sandbox->driver = NULL;
        if (sandbox->slot >= 0)
            sp_slots_release(&table->slots, (unsigned)sandbox->slot);
        sandbox->slot = -1;
        g_clear_pointer(&sandbox->user, g_free);
        g_clear_pointer(&sandbox->workdir, g_free);
    } else {
        sandbox->found.presence = SP_PRESENCE_PARTIAL;
    }
    g_mutex_unlock(&table->lock);
    return gone;
}
