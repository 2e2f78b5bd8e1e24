/* Removing a sandbox. */
#include "base/failpoint.h"
#include "node/destroy_dir.h"
#include "node/forms.h"
#include "node/lifecycle.h"
#include "node/sessions.h"

/* The instance, then its saved form, then the run directory: as long as something is there, the
 * directory is, and a restarted worker finds it. */
static bool remove_all(struct sp_sandbox *sandbox, GError **error)
{
    bool gone = sp_failpoint("destroy.before_instance", error) &&
                sp_forms_remove_instance(sandbox, error) &&
                sp_failpoint("destroy.before_form", error) &&
                sp_forms_remove(sandbox->node, sandbox->id, error) &&
                sp_failpoint("destroy.before_run_dir", error) &&
                sp_destroy_run_dir(sandbox->node, sandbox->run_dir, error);
    if (gone)
        sp_failpoint("destroy.done", NULL);
    return gone;
}

bool sp_take_down(struct sp_sandbox *sandbox, const char *reason, GError **error)
{
    struct sp_table *table = sandbox->node->table;
    g_mutex_lock(&table->lock);
    struct sp_link *link = g_steal_pointer(&sandbox->link);
    struct sp_instance *instance = g_steal_pointer(&sandbox->instance);
    if (sandbox->found.presence == SP_PRESENCE_RUNNING ||
        sandbox->found.presence == SP_PRESENCE_PAUSED)
        sandbox->found.presence = SP_PRESENCE_PARTIAL; /* nobody finds it any more */
    g_mutex_unlock(&table->lock);

    if (link)
        sp_link_stop(link, reason);
    sp_link_unref(link);
    if (instance)
        instance->driver->ops->instance_free(instance);
    sp_sessions_lose(sandbox->node->sessions, sandbox->id, reason);

    bool gone = remove_all(sandbox, error);
    g_mutex_lock(&table->lock);
    if (gone) {
        sandbox->found.presence = SP_PRESENCE_ABSENT;
        sandbox->driver = NULL;
        if (sandbox->slot >= 0)
            sp_slots_release(&table->slots, (unsigned)sandbox->slot);
        sandbox->slot = -1;
        g_clear_pointer(&sandbox->user, g_free);
        g_clear_pointer(&sandbox->workdir, g_free);
        g_clear_pointer(&sandbox->lost_reason, g_free);
    } else {
        sandbox->found.presence = SP_PRESENCE_PARTIAL;
    }
    g_mutex_unlock(&table->lock);
    return gone;
}
