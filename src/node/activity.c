#include "node/activity.h"

#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/time.h"
#include "driver/record.h"
#include "node/sessions.h"
#include "node/table.h"
#include "node/upstream.h"
#include "os/cgroup.h"

#define PERIOD_MS 5000
/* Below that it counts as nothing: an idle guest's clock ticks. */
#define CPU_PERCENT_MIN 0.05

/* What was last seen of a sandbox. */
struct seen {
    char *cgroup; /* NULL: it has none */
    int64_t cpu_us, at_us;
    bool known; /* cpu_us is set */
    unsigned round;
    bool told; /* the last report was not zero */
};

struct sp_activity {
    struct sp_node *node;
    GThread *thread;
    GMutex lock;
    GCond changed;
    bool stopping;
    /* The thread's own. */
    struct sp_cgroups *cgroups; /* NULL: the host has none that we can use */
    GHashTable *by_id;          /* id → struct seen * */
    unsigned round;
    bool failing;
};

static void seen_free(void *data)
{
    struct seen *seen = data;
    g_free(seen->cgroup);
    g_free(seen);
}

/* The entry of a sandbox; its control group is that of its record. */
static struct seen *see(struct sp_activity *activity, const struct sp_sandbox *sandbox)
{
    struct seen *seen = g_hash_table_lookup(activity->by_id, sandbox->id);
    if (!seen) {
        seen = g_new0(struct seen, 1);
        g_hash_table_insert(activity->by_id, g_strdup(sandbox->id), seen);
    }
    struct sp_record record = {0};
    if (!seen->cgroup && sp_record_load(sandbox->run_dir, &record, NULL))
        seen->cgroup = g_steal_pointer(&record.cgroup);
    sp_record_clear(&record);
    seen->round = activity->round;
    return seen;
}

/* Percent of one core since the last look; 0 at the first. */
static double cpu_percent(struct sp_activity *activity, struct seen *seen)
{
    struct sp_cgroup_usage usage = {0};
    if (!activity->cgroups || !seen->cgroup)
        return 0;
    SP_CLEANUP(sp_cgroup_free_p)
    struct sp_cgroup *cgroup = sp_cgroup_new(activity->cgroups, seen->cgroup);
    int64_t now = sp_time_monotonic_us();
    if (!sp_cgroup_usage(cgroup, &usage, NULL)) { /* after a wake it may have another one */
        g_clear_pointer(&seen->cgroup, g_free);
        seen->known = false;
        return 0;
    }
    double percent = 0;
    if (seen->known && now > seen->at_us && usage.cpu_us > seen->cpu_us)
        percent = 100.0 * (double)(usage.cpu_us - seen->cpu_us) / (double)(now - seen->at_us);
    seen->cpu_us = usage.cpu_us;
    seen->at_us = now;
    seen->known = true;
    return percent >= CPU_PERCENT_MIN ? percent : 0;
}

static gboolean is_old(gpointer key, gpointer value, gpointer user)
{
    return ((struct seen *)value)->round != *(unsigned *)user;
}

/* Of running sandboxes for which something is to be told. */
static json_t *look(struct sp_activity *activity)
{
    struct sp_node *node = activity->node;
    json_t *list = json_array();
    g_autoptr(GPtrArray) all = sp_table_all(node->table);
    activity->round++;
    for (guint i = 0; i < all->len; i++) {
        struct sp_sandbox *sandbox = all->pdata[i];
        g_mutex_lock(&node->table->lock);
        bool runs = sandbox->found.presence == SP_PRESENCE_RUNNING && !sandbox->busy;
        g_mutex_unlock(&node->table->lock);
        if (!runs)
            continue;
        struct seen *seen = see(activity, sandbox);
        unsigned attached = sp_sessions_attached(node->sessions, sandbox->id);
        double percent = cpu_percent(activity, seen);
        bool zero = attached == 0 && percent == 0;
        if (!zero || seen->told)
            json_array_append_new(list, json_pack("{s:s,s:i,s:f}", "id", sandbox->id, "attached",
                                                  (int)attached, "cpu_percent",
                                                  (double)(int64_t)(percent * 10) / 10));
        seen->told = !zero;
    }
    g_hash_table_foreach_remove(activity->by_id, is_old, &activity->round);
    return list;
}

static void tell(struct sp_activity *activity)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(json_t) list = look(activity);
    if (json_array_size(list) == 0)
        return;
    bool fine = sp_upstream_activity(activity->node, list, &error);
    if (!fine && !activity->failing && !sp_node_stopping(activity->node))
        sp_log_error("the server does not take the report of activity", error, NULL);
    activity->failing = !fine;
}

static void *activity_thread(void *data)
{
    struct sp_activity *activity = data;
    g_mutex_lock(&activity->lock);
    while (!activity->stopping) {
        int64_t until = sp_time_monotonic_us() + PERIOD_MS * (int64_t)1000;
        while (!activity->stopping &&
               g_cond_wait_until(&activity->changed, &activity->lock, until)) {
        }
        if (activity->stopping)
            break;
        g_mutex_unlock(&activity->lock);
        tell(activity);
        g_mutex_lock(&activity->lock);
    }
    g_mutex_unlock(&activity->lock);
    return NULL;
}

struct sp_activity *sp_activity_start(struct sp_node *node)
{
    struct sp_activity *activity = g_new0(struct sp_activity, 1);
    activity->node = node;
    g_mutex_init(&activity->lock);
    g_cond_init(&activity->changed);
    activity->by_id = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, seen_free);
    activity->cgroups = node->cgroup_root ? sp_cgroups_open(NULL, node->cgroup_root, NULL) : NULL;
    activity->thread = g_thread_new("activity", activity_thread, activity);
    return activity;
}

void sp_activity_stop(struct sp_activity *activity)
{
    g_mutex_lock(&activity->lock);
    activity->stopping = true;
    g_cond_signal(&activity->changed);
    g_mutex_unlock(&activity->lock);
    g_thread_join(activity->thread);
    g_hash_table_destroy(activity->by_id);
    if (activity->cgroups)
        sp_cgroups_free(activity->cgroups);
    g_mutex_clear(&activity->lock);
    g_cond_clear(&activity->changed);
    g_free(activity);
}
