/* Removing a sandbox. */
#include "node/lifecycle.h"
#include "node/run_dir.h"
#include "node/sessions.h"

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

    bool gone = sp_run_dir_destroy(sandbox->node, sandbox->run_dir, error);
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
