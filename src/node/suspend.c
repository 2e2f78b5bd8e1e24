/* Suspend: everything of a sandbox becomes its saved form. */
#include "base/error.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/time.h"
#include "driver/driver.h"
#include "node/changes.h"
#include "node/forms.h"
#include "node/run_dir.h"
#include "node/sessions.h"
#include "node/standstill.h"
#include "node/steps.h"

#define RELEASE_TRIES 3
#define RELEASE_PAUSE_US 200000

struct suspending {
    struct sp_sandbox *sandbox;
    const struct sp_driver_ops *ops;
    bool memory;
    bool stood_still; /* before it began */
    bool goes_on;     /* after a failure */
    json_t *steps;
    struct sp_saving *saving;
};

static bool begin(struct suspending *s, GError **error)
{
    int64_t began = sp_time_monotonic_us();
    struct sp_save_spec spec = {.saved_name = s->sandbox->id, .memory = s->memory, .durable = true};
    /* A form without the file "suspended" is what a suspend that broke off has left. */
    if (!sp_forms_remove(s->sandbox->node, s->sandbox->id, error) ||
        !sp_failpoint("suspend.before_begin", error))
        return false;
    s->saving = s->ops->save_begin(s->sandbox->instance, &spec, error);
    if (!s->saving || !sp_failpoint("suspend.begun", error))
        return false;
    sp_steps_since(s->steps, "begin", began);
    return sp_sandbox_check_wanted(s->sandbox, error);
}

static bool stand_still(struct suspending *s, GError **error)
{
    int64_t began = sp_time_monotonic_us();
    bool fine = true;
    if (!s->stood_still)
        fine = sp_still_begin(s->sandbox, SP_STILL_BRIEF | (s->memory ? 0 : SP_STILL_SYNC), error);
    else if (!s->memory)
        fine = sp_still_sync(s->sandbox, error);
    if (fine)
        sp_steps_since(s->steps, "pause", began);
    return fine;
}

static bool capture(struct suspending *s, GError **error)
{
    int64_t began = sp_time_monotonic_us();
    if ((s->memory && s->ops->memory_wants_no_link && !sp_link_hang_up(s->sandbox->link, error)) ||
        !sp_failpoint("suspend.before_capture", error) || !s->ops->save_capture(s->saving, error) ||
        !sp_failpoint("suspend.captured", error))
        return false;
    sp_steps_since(s->steps, "capture", began);
    return sp_sandbox_check_wanted(s->sandbox, error);
}

static bool finish(struct suspending *s, GError **error)
{
    int64_t began = sp_time_monotonic_us();
    struct sp_saved_result result;
    if (!sp_failpoint("suspend.before_finish", error) ||
        !s->ops->save_finish(s->saving, &result, sp_steps_add, s->steps, error) ||
        !sp_failpoint("suspend.finished", error))
        return false;
    sp_steps_since(s->steps, "finish", began);
    return sp_sandbox_check_wanted(s->sandbox, error);
}

static bool commit(struct suspending *s, GError **error)
{
    struct sp_run_suspended suspended = {.slot = s->sandbox->slot, .memory = s->memory};
    if (!sp_failpoint("suspend.before_commit", error) ||
        !sp_run_dir_put_suspended(s->sandbox->run_dir, &suspended, error))
        return false;
    sp_failpoint("suspend.committed", NULL);
    return true;
}

/* It is not suspended: nothing of the form stays, and it goes on if it did before. */
static void undo(struct suspending *s)
{
    struct sp_sandbox *sandbox = s->sandbox;
    g_autoptr(GError) error = NULL;
    if (!sp_forms_remove(sandbox->node, sandbox->id, &error))
        sp_log_error("a saved form stays after a suspend that failed", error, "sandbox",
                     sandbox->id, NULL);
    g_clear_error(&error);
    if (s->goes_on && sandbox->found.presence == SP_PRESENCE_PAUSED &&
        !sp_sandbox_doomed(sandbox) && !sp_still_end(sandbox, &error))
        sp_log_error("a sandbox stays paused after a suspend that failed", error, "sandbox",
                     sandbox->id, NULL);
}

/* Removes the instance; a few times, since a suspended sandbox is to use no memory. What is still
 * there then goes with the next wake or delete. */
static void remove_instance(struct sp_sandbox *sandbox)
{
    for (int i = 1;; i++) {
        g_autoptr(GError) error = NULL;
        bool gone = sp_failpoint("suspend.before_destroy", &error) &&
                    sp_forms_remove_instance(sandbox, &error);
        if (gone)
            return;
        if (i == RELEASE_TRIES) {
            sp_log_error("what ran of a suspended sandbox is still there", error, "sandbox",
                         sandbox->id, NULL);
            return;
        }
        g_usleep(RELEASE_PAUSE_US);
    }
}

void sp_change_let_go(struct sp_sandbox *sandbox, bool kept, json_t *steps)
{
    static const char lost[] = "the sandbox was suspended without its memory";
    struct sp_table *table = sandbox->node->table;
    int64_t began = sp_time_monotonic_us();
    g_mutex_lock(&table->lock);
    struct sp_link *link = g_steal_pointer(&sandbox->link);
    struct sp_instance *instance = g_steal_pointer(&sandbox->instance);
    sandbox->found.presence = SP_PRESENCE_SUSPENDED;
    sandbox->driver = NULL;
    g_mutex_unlock(&table->lock);
    if (kept)
        sp_sessions_keep(sandbox->node->sessions, sandbox->id);
    if (link && kept)
        sp_link_suspend(link);
    else if (link)
        sp_link_stop(link, lost);
    sp_link_unref(link);
    if (!kept)
        sp_sessions_lose(sandbox->node->sessions, sandbox->id, lost);
    if (instance)
        instance->driver->ops->instance_free(instance);
    remove_instance(sandbox);
    sp_failpoint("suspend.destroyed", NULL);
    sp_steps_since(steps, "release", began);
}

bool sp_change_suspend(struct sp_sandbox *sandbox, bool memory, json_t *steps, GError **error)
{
    struct sp_driver *driver = sandbox->instance->driver;
    struct suspending s = {
        .sandbox = sandbox, .ops = driver->ops, .memory = memory, .steps = steps};
    s.stood_still = sandbox->found.presence == SP_PRESENCE_PAUSED;
    s.goes_on = !s.stood_still || sp_still_is_brief(sandbox);
    if (!sp_forms_check_tier(driver, memory, error))
        return false;
    bool fine = begin(&s, error) && stand_still(&s, error) && capture(&s, error) &&
                finish(&s, error) && commit(&s, error);
    if (s.saving)
        s.ops->save_free(s.saving);
    if (fine)
        sp_change_let_go(sandbox, memory, steps);
    else
        undo(&s);
    return fine;
}
