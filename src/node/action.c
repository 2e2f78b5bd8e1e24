#include "node/action.h"

#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/time.h"
#include "node/changes.h"
#include "node/ending.h"
#include "node/lifecycle.h"
#include "node/observe.h"
#include "node/outbox.h"
#include "node/reconcile_private.h"
#include "node/snapshots.h"

#define MAKERS 8
#define SAVERS 4
#define OTHERS 4
#define RETRY_MIN_MS 500
#define RETRY_MAX_MS 30000

static void retry_later(struct sp_sandbox *sandbox)
{
    sandbox->retry_ms = CLAMP(sandbox->retry_ms * 2, RETRY_MIN_MS, RETRY_MAX_MS);
    sandbox->retry_at_ms = sp_time_monotonic_ms() + sandbox->retry_ms;
}

static void report(struct sp_sandbox *sandbox, json_t *value)
{
    sandbox->pending_generation = json_integer_value(json_object_get(value, "generation"));
    sp_outbox_put(sandbox->node->sandbox_reports, sandbox->id, value);
}

static void set_failure(struct sp_sandbox *sandbox, int64_t generation, const char *code,
                        const char *message)
{
    g_free(sandbox->fail_code);
    g_free(sandbox->fail_message);
    sandbox->fail_code = g_strdup(code);
    sandbox->fail_message = g_strdup(message);
    sandbox->found.failed_generation = generation;
}

static void create(struct sp_sandbox *sandbox, int64_t generation, struct sp_sandbox_spec *spec)
{
    struct sp_table *table = sandbox->node->table;
    g_autoptr(GError) error = NULL;
    json_t *steps = json_array();
    int64_t began_us = sp_time_monotonic_us();
    bool fine = sp_bring_up(sandbox, spec, steps, &error);
    g_autofree char *took =
        g_strdup_printf("%" G_GINT64_FORMAT, (sp_time_monotonic_us() - began_us) / 1000);
    if (fine)
        sp_log(SP_LOG_INFO, "sandbox is ready", "sandbox", sandbox->id, "tier", spec->isolation,
               "ms", took, NULL);
    else
        sp_log_error("sandbox could not be made", error, "sandbox", sandbox->id, "tier",
                     spec->isolation, "ms", took, NULL);

    g_mutex_lock(&table->lock);
    if (fine) {
        sandbox->found.was_running = true;
        json_t *value =
            sp_observe_state(sandbox, generation, SP_STATE_RUNNING, NULL, NULL, NULL, steps);
        json_object_set_new(value, "started_at_ms", json_integer(sp_time_now_ms()));
        if (sandbox->wanted.desired != SP_DESIRED_DELETED)
            report(sandbox, value);
        else
            json_decref(value);
    } else {
        set_failure(sandbox, generation, sp_error_name(error), error->message);
        if (sandbox->wanted.desired != SP_DESIRED_DELETED)
            report(sandbox, sp_observe_state(sandbox, generation, SP_STATE_FAILED, error->message,
                                             sandbox->fail_code, error->message, steps));
    }
    g_mutex_unlock(&table->lock);
    json_decref(steps);
}

static void destroy(struct sp_sandbox *sandbox, bool deleted)
{
    struct sp_table *table = sandbox->node->table;
    g_autoptr(GError) error = NULL;
    bool gone = sp_take_down(sandbox, deleted ? "the sandbox was deleted" : "the sandbox has ended",
                             &error);
    if (gone)
        sp_log(SP_LOG_INFO, "sandbox is removed", "sandbox", sandbox->id, NULL);
    else
        sp_log_error("sandbox could not be removed, trying again", error, "sandbox", sandbox->id,
                     NULL);
    g_mutex_lock(&table->lock);
    if (!gone)
        retry_later(sandbox);
    g_mutex_unlock(&table->lock);
}

/* Its process has ended by itself: what is left is removed, and the loss is told. */
static void fail(struct sp_sandbox *sandbox, int64_t generation)
{
    struct sp_table *table = sandbox->node->table;
    g_autoptr(GError) error = NULL;
    g_autofree char *reason =
        sandbox->lost_reason ? g_strdup(sandbox->lost_reason) : sp_ending_reason(sandbox);
    bool gone = sp_take_down(sandbox, "the sandbox has ended", &error);
    if (!gone)
        sp_log_error("a sandbox that ended could not be removed, trying again", error, "sandbox",
                     sandbox->id, NULL);
    else
        sp_log(SP_LOG_WARNING, "sandbox has ended by itself", "sandbox", sandbox->id, NULL);
    g_mutex_lock(&table->lock);
    set_failure(sandbox, generation, "unavailable", reason);
    report(sandbox, sp_observe_state(sandbox, generation, SP_STATE_FAILED, reason, "unavailable",
                                     reason, NULL));
    if (!gone)
        retry_later(sandbox);
    g_mutex_unlock(&table->lock);
}

static void look_again(struct sp_sandbox *sandbox)
{
    struct sp_table *table = sandbox->node->table;
    g_autoptr(GError) error = NULL;
    bool known = sp_adopt(sandbox, &error);
    if (!known)
        sp_log_error("cannot tell the state of a sandbox", error, "sandbox", sandbox->id, NULL);
    g_mutex_lock(&table->lock);
    if (!known)
        retry_later(sandbox);
    g_mutex_unlock(&table->lock);
}

static bool change(struct sp_sandbox *sandbox, enum sp_action action, struct sp_sandbox_spec *spec,
                   json_t *steps, GError **error)
{
    struct sp_table *table = sandbox->node->table;
    g_mutex_lock(&table->lock);
    bool memory = sandbox->want_memory;
    int64_t rollback = sandbox->wanted.rollback_generation;
    g_autofree char *snapshot = g_strdup(sandbox->rollback_snapshot);
    g_mutex_unlock(&table->lock);
    switch (action) {
    case SP_ACTION_PAUSE:
        return sp_change_pause(sandbox, steps, error);
    case SP_ACTION_RESUME:
        return sp_change_resume(sandbox, steps, error);
    case SP_ACTION_SUSPEND:
        return sp_change_suspend(sandbox, memory, steps, error);
    case SP_ACTION_WAKE:
        return sp_change_wake(sandbox, spec, steps, error);
    default:
        return sp_change_rollback(sandbox, snapshot ? snapshot : "", rollback, steps, error);
    }
}

/* Changes a sandbox that exists. What fails leaves it as it was, and is told with the state that it
 * is in; it is not tried again for this generation. */
static void run_change(struct sp_sandbox *sandbox, enum sp_action action, int64_t generation,
                       struct sp_sandbox_spec *spec)
{
    struct sp_table *table = sandbox->node->table;
    const char *name = sp_action_name(action);
    g_autoptr(GError) error = NULL;
    g_mutex_lock(&table->lock);
    json_t *steps = g_steal_pointer(&sandbox->carried_steps);
    g_mutex_unlock(&table->lock);
    if (!steps)
        steps = json_array();
    int64_t began_us = sp_time_monotonic_us();
    bool fine = change(sandbox, action, spec, steps, &error);
    g_autofree char *took =
        g_strdup_printf("%" G_GINT64_FORMAT, (sp_time_monotonic_us() - began_us) / 1000);
    if (fine)
        sp_log(SP_LOG_INFO, "sandbox is changed", "sandbox", sandbox->id, "action", name, "ms",
               took, NULL);
    else
        sp_log_error("a change of a sandbox has failed", error, "sandbox", sandbox->id, "action",
                     name, "ms", took, NULL);

    g_mutex_lock(&table->lock);
    /* Our own end is no failure of the change: the next worker finds what is wanted, and does it.
     */
    bool left = !fine && sp_node_stopping(sandbox->node);
    bool wanted = sandbox->wanted.desired != SP_DESIRED_DELETED && !left;
    if (!fine && !left)
        set_failure(sandbox, generation, sp_error_name(error), error->message);
    if (fine && action == SP_ACTION_ROLLBACK && wanted)
        sandbox->carried_steps = json_incref(steps); /* the wake that follows reports */
    else if (wanted)
        report(sandbox, fine ? sp_observe_steps(sandbox, generation, steps)
                             : sp_observe_failed(sandbox, generation, steps));
    g_mutex_unlock(&table->lock);
    json_decref(steps);
}

static void run_action(void *data, void *user)
{
    struct sp_sandbox *sandbox = data;
    struct sp_table *table = sandbox->node->table;
    struct sp_action_pools *pools = sp_reconciler_pools(sandbox->node->reconciler);
    g_mutex_lock(&table->lock);
    enum sp_action action = sp_node_stopping(sandbox->node) ? SP_ACTION_NONE : sandbox->action;
    struct sp_wanted wanted = sandbox->wanted;
    struct sp_sandbox_spec *spec = sandbox->spec ? sp_sandbox_spec_ref(sandbox->spec) : NULL;
    sandbox->retry_at_ms = 0;
    g_mutex_unlock(&table->lock);

    if (action == SP_ACTION_CREATE && spec && wanted.desired == SP_DESIRED_RUNNING)
        create(sandbox, wanted.generation, spec);
    else if (action == SP_ACTION_DESTROY)
        destroy(sandbox, wanted.desired == SP_DESIRED_DELETED);
    else if (action == SP_ACTION_FAIL)
        fail(sandbox, wanted.generation);
    else if (action == SP_ACTION_LOOK_AGAIN)
        look_again(sandbox);
    else if (action == SP_ACTION_NONE)
        sp_snapshots_serve(sandbox->node->snapshots, sandbox);
    else if (spec)
        run_change(sandbox, action, wanted.generation, spec);

    g_mutex_lock(&table->lock);
    sandbox->busy = false;
    if (sandbox->retry_at_ms == 0)
        sandbox->retry_ms = 0;
    sp_action_consider(sandbox);
    g_mutex_unlock(&table->lock);
    sp_sandbox_spec_unref(spec);
    sp_sandbox_unref(sandbox);
    g_atomic_int_add(&pools->n_actions, -1);
}

static void queue(struct sp_sandbox *sandbox, enum sp_action action)
{
    struct sp_action_pools *pools = sp_reconciler_pools(sandbox->node->reconciler);
    sandbox->busy = true;
    sandbox->action = action;
    g_atomic_int_inc(&pools->n_actions);
    GThreadPool *pool = pools->others;
    if (action == SP_ACTION_CREATE || action == SP_ACTION_WAKE)
        pool = pools->makers;
    else if (action == SP_ACTION_SUSPEND || action == SP_ACTION_ROLLBACK ||
             action == SP_ACTION_NONE)
        pool = pools->savers;
    g_thread_pool_push(pool, sp_sandbox_ref(sandbox), NULL);
}

/* Its snapshots: taken when nothing else is to be done, or never. True: that is its action now. */
static bool see_to_snapshots(struct sp_sandbox *sandbox, enum sp_action action)
{
    struct sp_snapshots *snapshots = sandbox->node->snapshots;
    enum sp_presence presence = sandbox->found.presence;
    bool deleted = sandbox->wanted.known && sandbox->wanted.desired == SP_DESIRED_DELETED;
    bool here = presence == SP_PRESENCE_RUNNING || presence == SP_PRESENCE_PAUSED ||
                presence == SP_PRESENCE_SUSPENDED;
    bool settled = action == SP_ACTION_NONE || action == SP_ACTION_REPORT_OBSERVED ||
                   action == SP_ACTION_UNSUPPORTED;
    if (!sp_snapshots_due(snapshots, sandbox->id))
        return false;
    if (deleted || action == SP_ACTION_FAIL || (settled && !here && sandbox->wanted.known))
        sp_snapshots_fail(snapshots, sandbox->id,
                          deleted ? "the sandbox is deleted" : "the sandbox does not run");
    else if (settled && here && sandbox->wanted.known) {
        queue(sandbox, SP_ACTION_NONE);
        return true;
    }
    return false;
}

/* Whether the brake stops a removal that the server has not asked for. */
static bool braked(struct sp_sandbox *sandbox)
{
    if (!sandbox->found_at_start || !sandbox->found.was_running ||
        sandbox->wanted.desired == SP_DESIRED_DELETED)
        return false;
    struct sp_brake *brake = &sandbox->node->table->brake;
    bool was_holding = brake->holding;
    if (sp_brake_allows(brake, sp_time_monotonic_ms()))
        return false;
    if (!was_holding)
        sp_log(SP_LOG_ERROR,
               "most sandboxes found at start are to be removed without an order: holding for a "
               "minute",
               NULL);
    sandbox->retry_at_ms = brake->release_ms;
    /* Until then it may turn out to run after all. */
    sandbox->found.presence = SP_PRESENCE_UNKNOWN;
    return true;
}

/* Nothing of it is here, and nothing about it is left to be said. */
static bool is_done(const struct sp_sandbox *sandbox)
{
    return sandbox->found.presence == SP_PRESENCE_ABSENT &&
           (!sandbox->wanted.known ||
            (sandbox->wanted.desired == SP_DESIRED_DELETED &&
             sandbox->found.reported_generation >= sandbox->wanted.generation));
}

static json_t *unsupported(const struct sp_sandbox *sandbox)
{
    json_t *value = sp_observe(sandbox, sandbox->wanted.generation);
    json_t *error = json_pack("{s:s,s:s}", "code", "unsupported", "message",
                              "this change is not possible for this sandbox");
    json_object_set_new(value, "error", error);
    return value;
}

void sp_action_consider(struct sp_sandbox *sandbox)
{
    if (sandbox->busy || sandbox->dropped || sp_node_stopping(sandbox->node))
        return;
    if (sandbox->gone && (sandbox->found.presence == SP_PRESENCE_RUNNING ||
                          sandbox->found.presence == SP_PRESENCE_PAUSED))
        sandbox->found.presence = SP_PRESENCE_ENDED;
    if (sandbox->retry_at_ms > sp_time_monotonic_ms())
        return;
    enum sp_action action = sp_decide(&sandbox->wanted, &sandbox->found);
    bool told = sandbox->pending_generation >= sandbox->wanted.generation;
    bool saving = see_to_snapshots(sandbox, action);
    switch (action) {
    case SP_ACTION_NONE:
        if (!saving && is_done(sandbox)) {
            sandbox->dropped = true;
            g_hash_table_remove(sandbox->node->table->by_id, sandbox->id);
        }
        break;
    case SP_ACTION_REPORT_OBSERVED:
        if (!told) /* else the report that is on its way says it, with its steps */
            report(sandbox, sp_observe(sandbox, sandbox->wanted.generation));
        break;
    case SP_ACTION_REPORT_DELETED:
        report(sandbox, sp_observe_state(sandbox, sandbox->wanted.generation, SP_STATE_DELETED,
                                         NULL, NULL, NULL, NULL));
        break;
    case SP_ACTION_UNSUPPORTED:
        if (!told)
            report(sandbox, unsupported(sandbox));
        break;
    case SP_ACTION_DESTROY:
    case SP_ACTION_FAIL:
        if (!braked(sandbox))
            queue(sandbox, action);
        break;
    case SP_ACTION_CREATE:
    case SP_ACTION_LOOK_AGAIN:
    case SP_ACTION_PAUSE:
    case SP_ACTION_RESUME:
    case SP_ACTION_SUSPEND:
    case SP_ACTION_WAKE:
    case SP_ACTION_ROLLBACK:
        queue(sandbox, action);
        break;
    case SP_N_ACTIONS:
        break;
    }
}

bool sp_action_pools_init(struct sp_action_pools *pools)
{
    pools->makers = g_thread_pool_new(run_action, NULL, MAKERS, FALSE, NULL);
    pools->savers = g_thread_pool_new(run_action, NULL, SAVERS, FALSE, NULL);
    pools->others = g_thread_pool_new(run_action, NULL, OTHERS, FALSE, NULL);
    return pools->makers && pools->savers && pools->others;
}

bool sp_action_pools_stop(struct sp_action_pools *pools, int64_t timeout_ms)
{
    int64_t deadline = sp_time_monotonic_ms() + timeout_ms;
    /* g_thread_pool_free(wait) has no deadline. Queued actions see that the worker stops, and end.
     */
    while (g_atomic_int_get(&pools->n_actions) > 0) {
        if (sp_time_monotonic_ms() >= deadline)
            return false;
        g_usleep(5000);
    }
    g_thread_pool_free(pools->makers, TRUE, TRUE);
    g_thread_pool_free(pools->savers, TRUE, TRUE);
    g_thread_pool_free(pools->others, TRUE, TRUE);
    return true;
}
