#include "node/standstill.h"

#include <string.h>

#include "base/error.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/time.h"
#include "node/run_dir.h"

#define HOLD_MS 10000
/* Written-back pages of a slow disk. */
#define HOLD_SYNC_MS 120000
#define RELEASE_MS 30000
#define BRIEF "brief"

static int64_t deadline_in(int64_t ms)
{
    return sp_time_monotonic_us() + ms * 1000;
}

static const struct sp_driver_ops *ops_of(const struct sp_sandbox *sandbox)
{
    return sandbox->instance->driver->ops;
}

static bool hold(struct sp_sandbox *sandbox, bool sync, GError **error)
{
    if (!ops_of(sandbox)->agent_holds)
        return true;
    if (sp_link_hold(sandbox->link, sync ? SP_HOLD_SYNC : 0,
                     deadline_in(sync ? HOLD_SYNC_MS : HOLD_MS), error))
        return true;
    g_prefix_error(error, "holding the processes of the sandbox: ");
    return false;
}

static bool release(struct sp_sandbox *sandbox, GError **error)
{
    if (!ops_of(sandbox)->agent_holds)
        return true;
    uint64_t now_ns =
        ops_of(sandbox)->needs_clock_and_entropy ? (uint64_t)g_get_real_time() * 1000 : 0;
    if (sp_link_release(sandbox->link, now_ns, deadline_in(RELEASE_MS), error))
        return true;
    g_prefix_error(error, "letting the processes of the sandbox go on: ");
    return false;
}

/* Stops the machine around the held processes. */
static bool stop(struct sp_sandbox *sandbox, GError **error)
{
    sp_link_pause(sandbox->link, true);
    if (sp_failpoint("still.before_pause", error) &&
        ops_of(sandbox)->pause(sandbox->instance, error) && sp_failpoint("still.paused", error))
        return true;
    g_prefix_error(error, "pausing the sandbox: ");
    return false;
}

static bool go_on(struct sp_sandbox *sandbox, GError **error)
{
    if (!sp_failpoint("still.before_resume", error) ||
        !ops_of(sandbox)->resume(sandbox->instance, error) ||
        !sp_failpoint("still.resumed", error)) {
        g_prefix_error(error, "resuming the sandbox: ");
        return false;
    }
    sp_link_pause(sandbox->link, false);
    return true;
}

/* It stands still in any case, as far as that can be brought about. */
static void stop_again(struct sp_sandbox *sandbox)
{
    g_autoptr(GError) error = NULL;
    sp_link_pause(sandbox->link, true);
    if (!ops_of(sandbox)->pause(sandbox->instance, &error))
        sp_log_error("a sandbox that is paused may run on", error, "sandbox", sandbox->id, NULL);
    sp_sandbox_set_presence(sandbox, SP_PRESENCE_PAUSED);
}

bool sp_still_end(struct sp_sandbox *sandbox, GError **error)
{
    if (!go_on(sandbox, error) || !sp_failpoint("still.before_release", error) ||
        !release(sandbox, error) || !sp_failpoint("still.released", error)) {
        stop_again(sandbox);
        return false;
    }
    g_autoptr(GError) cause = NULL;
    if (!sp_run_dir_drop(sandbox->run_dir, SP_RUN_HELD, false, &cause))
        sp_log_error("a mark of a paused sandbox stays", cause, "sandbox", sandbox->id, NULL);
    sp_sandbox_set_presence(sandbox, SP_PRESENCE_RUNNING);
    return true;
}

/* After a failure in the middle of sp_still_begin(). */
static void undo(struct sp_sandbox *sandbox)
{
    g_autoptr(GError) cause = NULL;
    if (sp_sandbox_doomed(sandbox)) { /* nothing needs to go on */
        sp_sandbox_set_presence(sandbox, SP_PRESENCE_PAUSED);
        return;
    }
    if (!sp_still_end(sandbox, &cause))
        sp_log_error("a sandbox that could not be paused does not go on either", cause, "sandbox",
                     sandbox->id, NULL);
}

bool sp_still_begin(struct sp_sandbox *sandbox, unsigned flags, GError **error)
{
    if (!ops_of(sandbox)->pause || !ops_of(sandbox)->resume) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED,
                    "sandboxes of this tier cannot be paused");
        return false;
    }
    if (!sp_run_dir_put(sandbox->run_dir, SP_RUN_HELD, flags & SP_STILL_BRIEF ? BRIEF : "", false,
                        error))
        return false;
    if (sp_failpoint("still.marked", error) && hold(sandbox, (flags & SP_STILL_SYNC) != 0, error) &&
        sp_failpoint("still.held", error) && sp_sandbox_check_wanted(sandbox, error) &&
        stop(sandbox, error)) {
        sp_sandbox_set_presence(sandbox, SP_PRESENCE_PAUSED);
        return true;
    }
    undo(sandbox);
    return false;
}

bool sp_still_sync(struct sp_sandbox *sandbox, GError **error)
{
    if (!ops_of(sandbox)->agent_holds)
        return true;
    /* A failure in the middle leaves the processes held, and the machine is stopped again. */
    bool fine = go_on(sandbox, error) && hold(sandbox, true, error);
    GError *cause = NULL;
    if (stop(sandbox, &cause))
        return fine;
    stop_again(sandbox);
    if (fine)
        g_propagate_error(error, cause);
    else
        g_clear_error(&cause);
    return false;
}

bool sp_still_is_brief(struct sp_sandbox *sandbox)
{
    g_autofree char *text = sp_run_dir_get(sandbox->run_dir, SP_RUN_HELD);
    return text && strcmp(text, BRIEF) == 0;
}
