#include "node/reconcile.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/time.h"
#include "node/builds.h"
#include "node/lifecycle.h"
#include "node/reconcile_private.h"
#include "node/run_dir.h"
#include "node/snapshots.h"
#include "node/template_drop.h"
#include "node/upstream.h"

#define POLL_WAIT_MS 20000
#define HEARTBEAT_MS 5000
#define TICK_MS 250
#define ASK_AGAIN_MS 30000
#define PAUSE_MIN_MS 100
#define PAUSE_MAX_MS 3000

struct sp_reconciler {
    struct sp_node *node;
    struct sp_action_pools pools;
    GThread *watch, *heartbeat, *tick;
    GMutex lock; /* of the waits below */
    GCond wake;
    bool stopping, beat;
    bool asked; /* desired_of was answered for what was found at start; the tick's own */
    int64_t ask_at_ms;
};

struct sp_action_pools *sp_reconciler_pools(struct sp_reconciler *reconciler)
{
    return &reconciler->pools;
}

struct sp_reconciler *sp_reconciler_new(struct sp_node *node)
{
    struct sp_reconciler *reconciler = g_new0(struct sp_reconciler, 1);
    reconciler->node = node;
    g_mutex_init(&reconciler->lock);
    g_cond_init(&reconciler->wake);
    sp_action_pools_init(&reconciler->pools);
    return reconciler;
}

/* Sleeps until the time is up, the worker stops, or (with beat) a heartbeat is asked for. */
static void pause_ms(struct sp_reconciler *reconciler, int64_t ms, bool beat)
{
    int64_t until = sp_time_monotonic_us() + ms * 1000;
    g_mutex_lock(&reconciler->lock);
    while (!reconciler->stopping && !(beat && reconciler->beat) &&
           g_cond_wait_until(&reconciler->wake, &reconciler->lock, until)) {
    }
    if (beat)
        reconciler->beat = false;
    g_mutex_unlock(&reconciler->lock);
}

static bool is_stopping(struct sp_reconciler *reconciler)
{
    return sp_node_stopping(reconciler->node);
}

static void scan_one(struct sp_node *node, const char *name)
{
    g_autoptr(GError) error = NULL;
    g_mutex_lock(&node->table->lock);
    struct sp_sandbox *sandbox = sp_table_get_locked(node->table, node, name);
    sandbox->found_at_start = true;
    sandbox->found.presence = SP_PRESENCE_UNKNOWN;
    sp_sandbox_ref(sandbox);
    node->table->brake.found++;
    g_mutex_unlock(&node->table->lock);
    if (!sp_adopt(sandbox, &error))
        sp_log_error("cannot tell the state of a sandbox", error, "sandbox", name, NULL);
    sp_sandbox_unref(sandbox);
}

/* What is suspended comes last: its slot may be an old one that somebody has who runs. */
void sp_reconciler_scan(struct sp_reconciler *reconciler)
{
    struct sp_node *node = reconciler->node;
    g_autoptr(GDir) dir = g_dir_open(node->sandbox_root, 0, NULL);
    g_autoptr(GPtrArray) suspended = g_ptr_array_new_with_free_func(g_free);
    const char *name;
    while (dir && (name = g_dir_read_name(dir))) {
        g_autofree char *run_dir = g_build_filename(node->sandbox_root, name, NULL);
        if (!sp_id_valid(name, "sbx"))
            continue;
        if (sp_run_dir_has(run_dir, SP_RUN_SUSPENDED))
            g_ptr_array_add(suspended, g_strdup(name));
        else
            scan_one(node, name);
    }
    for (guint i = 0; i < suspended->len; i++)
        scan_one(node, suspended->pdata[i]);
}

/* The members of a row that say what is wanted beside the state; the table's lock is held. */
static void take_wishes(struct sp_sandbox *sandbox, json_t *row)
{
    json_t *rollback = json_object_get(row, "rollback");
    const char *snapshot = json_string_value(json_object_get(rollback, "snapshot_id"));
    int64_t generation = json_integer_value(json_object_get(rollback, "generation"));
    sandbox->want_memory = !json_is_false(json_object_get(row, "memory"));
    if (!snapshot || !sp_id_valid(snapshot, "snp") || generation <= 0)
        return;
    g_free(sandbox->rollback_snapshot);
    sandbox->rollback_snapshot = g_strdup(snapshot);
    sandbox->wanted.rollback_generation = generation;
}

static bool want(struct sp_node *node, json_t *row)
{
    const char *id = json_string_value(json_object_get(row, "id"));
    const char *desired_name = json_string_value(json_object_get(row, "desired_state"));
    int64_t generation = json_integer_value(json_object_get(row, "generation"));
    enum sp_desired desired;
    if (!id || !sp_id_valid(id, "sbx") || !desired_name ||
        !sp_desired_parse(desired_name, &desired) || generation <= 0)
        return false;
    g_autoptr(GError) error = NULL;
    struct sp_sandbox_spec *spec = sp_sandbox_spec_decode(row, &error);
    if (!spec && desired != SP_DESIRED_DELETED) {
        sp_log_error("a malformed row in the desired list", error, "sandbox", id, NULL);
        return false;
    }
    g_mutex_lock(&node->table->lock);
    struct sp_sandbox *sandbox = sp_table_get_locked(node->table, node, id);
    if (generation >= sandbox->wanted.generation) {
        /* An earlier worker may have reported it: then it is lost, not to be made anew. */
        if (!sandbox->wanted.known && json_is_true(json_object_get(row, "was_running")))
            sandbox->found.was_running = true;
        if (generation > sandbox->wanted.generation)
            sandbox->retry_at_ms = 0;
        sandbox->wanted =
            (struct sp_wanted){true, desired, generation, sandbox->wanted.rollback_generation};
        take_wishes(sandbox, row);
        if (spec) {
            sp_sandbox_spec_unref(sandbox->spec);
            sandbox->spec = sp_sandbox_spec_ref(spec);
            if (spec->user && *spec->user && sandbox->user) {
                g_free(sandbox->user);
                sandbox->user = g_strdup(spec->user);
            }
        }
        sp_action_consider(sandbox);
    }
    g_mutex_unlock(&node->table->lock);
    sp_sandbox_spec_unref(spec);
    return true;
}

static void *watch_thread(void *data)
{
    struct sp_reconciler *reconciler = data;
    struct sp_node *node = reconciler->node;
    int64_t after = 0, wait_ms = PAUSE_MIN_MS;
    while (!is_stopping(reconciler)) {
        g_autoptr(GError) error = NULL;
        json_t *answer = sp_upstream_desired(node, after, POLL_WAIT_MS, &error);
        if (!answer) {
            if (!is_stopping(reconciler) && wait_ms == PAUSE_MIN_MS)
                sp_log_error("no answer from the server, trying again", error, NULL);
            pause_ms(reconciler, wait_ms, false);
            wait_ms = MIN(wait_ms * 2, PAUSE_MAX_MS);
            continue;
        }
        wait_ms = PAUSE_MIN_MS;
        size_t i;
        json_t *row;
        json_array_foreach(json_object_get(answer, "sandboxes"), i, row) want(node, row);
        sp_snapshots_want(node->snapshots, json_object_get(answer, "snapshots"));
        sp_builds_want(node->builds, json_object_get(answer, "builds"));
        after = json_integer_value(json_object_get(answer, "revision"));
        json_decref(answer);
    }
    return NULL;
}

static void *heartbeat_thread(void *data)
{
    struct sp_reconciler *reconciler = data;
    bool was_fine = true;
    while (!is_stopping(reconciler)) {
        g_autoptr(GError) error = NULL;
        unsigned builds = sp_builds_started(reconciler->node->builds);
        g_autoptr(json_t) answer = sp_upstream_register(reconciler->node, &error);
        bool fine = answer != NULL;
        if (!fine && was_fine && !is_stopping(reconciler))
            sp_log_error("the server does not take the registration", error, NULL);
        if (fine && !was_fine)
            sp_log(SP_LOG_INFO, "registered with the server again", NULL);
        was_fine = fine;
        sp_template_drop(reconciler->node, json_object_get(answer, "deleted_templates"), builds);
        pause_ms(reconciler, fine ? HEARTBEAT_MS : HEARTBEAT_MS / 10, fine);
    }
    return NULL;
}

/* Asks about sandboxes that the server has not named: it lists none that are finally deleted. */
static void ask_about_unknown(struct sp_reconciler *reconciler)
{
    struct sp_node *node = reconciler->node;
    g_autoptr(GPtrArray) all = sp_table_all(node->table);
    g_autoptr(GPtrArray) ids = g_ptr_array_new();
    for (guint i = 0; i < all->len; i++) {
        struct sp_sandbox *sandbox = all->pdata[i];
        g_mutex_lock(&node->table->lock);
        if (!sandbox->wanted.known)
            g_ptr_array_add(ids, sandbox->id);
        g_mutex_unlock(&node->table->lock);
    }
    if (ids->len == 0) {
        reconciler->ask_at_ms = sp_time_monotonic_ms() + ASK_AGAIN_MS;
        return;
    }
    g_ptr_array_add(ids, NULL);
    g_autoptr(GError) error = NULL;
    json_t *answer = sp_upstream_desired_of(node, (char **)ids->pdata, &error);
    reconciler->ask_at_ms = sp_time_monotonic_ms() + (answer ? ASK_AGAIN_MS : 1000);
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(answer, "sandboxes"), i, row)
    {
        const char *id = json_string_value(json_object_get(row, "id"));
        if (json_is_true(json_object_get(row, "unknown"))) {
            if (id && !reconciler->asked)
                sp_log(SP_LOG_WARNING,
                       "the server does not know a sandbox of this node: left alone", "sandbox", id,
                       NULL);
        } else {
            want(node, row);
        }
    }
    if (answer)
        reconciler->asked = true;
    json_decref(answer);
}

static void *tick_thread(void *data)
{
    struct sp_reconciler *reconciler = data;
    struct sp_table *table = reconciler->node->table;
    while (!is_stopping(reconciler)) {
        int64_t now = sp_time_monotonic_ms();
        g_autoptr(GPtrArray) all = sp_table_all(table);
        for (guint i = 0; i < all->len; i++) {
            struct sp_sandbox *sandbox = all->pdata[i];
            g_mutex_lock(&table->lock);
            if (sandbox->retry_at_ms && sandbox->retry_at_ms <= now)
                sp_action_consider(sandbox);
            g_mutex_unlock(&table->lock);
        }
        sp_snapshots_tick(reconciler->node->snapshots);
        if (now >= reconciler->ask_at_ms)
            ask_about_unknown(reconciler);
        pause_ms(reconciler, TICK_MS, false);
    }
    return NULL;
}

void sp_reconciler_start(struct sp_reconciler *reconciler)
{
    reconciler->heartbeat = g_thread_new("heartbeat", heartbeat_thread, reconciler);
    reconciler->watch = g_thread_new("watch", watch_thread, reconciler);
    reconciler->tick = g_thread_new("tick", tick_thread, reconciler);
}

void sp_reconciler_heartbeat(struct sp_reconciler *reconciler)
{
    g_mutex_lock(&reconciler->lock);
    reconciler->beat = true;
    g_cond_broadcast(&reconciler->wake);
    g_mutex_unlock(&reconciler->lock);
}

bool sp_reconciler_stop(struct sp_reconciler *reconciler, int64_t timeout_ms)
{
    g_mutex_lock(&reconciler->lock);
    reconciler->stopping = true;
    g_cond_broadcast(&reconciler->wake);
    g_mutex_unlock(&reconciler->lock);
    g_thread_join(reconciler->heartbeat);
    g_thread_join(reconciler->watch);
    g_thread_join(reconciler->tick);
    return sp_action_pools_stop(&reconciler->pools, timeout_ms);
}

void sp_reconciler_free(struct sp_reconciler *reconciler)
{
    g_mutex_clear(&reconciler->lock);
    g_cond_clear(&reconciler->wake);
    g_free(reconciler);
}

void sp_reconcile_on_gone(void *data)
{
    struct sp_sandbox *sandbox = data;
    g_mutex_lock(&sandbox->node->table->lock);
    sandbox->gone = true;
    sandbox->found_at_start = false; /* its end was seen: nothing for the brake */
    sp_action_consider(sandbox);
    g_mutex_unlock(&sandbox->node->table->lock);
}

void sp_reconcile_taken(void *data, const char *id, const json_t *report, bool taken)
{
    struct sp_node *node = data;
    int64_t generation = json_integer_value(json_object_get(report, "generation"));
    g_mutex_lock(&node->table->lock);
    struct sp_sandbox *sandbox = g_hash_table_lookup(node->table->by_id, id);
    if (sandbox) {
        /* A refused report counts too: it would be refused again. */
        sandbox->found.reported_generation = MAX(sandbox->found.reported_generation, generation);
        if (sandbox->pending_generation <= generation)
            sandbox->pending_generation = 0;
        sp_action_consider(sandbox);
    }
    g_mutex_unlock(&node->table->lock);
}
