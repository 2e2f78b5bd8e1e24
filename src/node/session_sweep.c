#include "node/session_sweep.h"

#include "base/time.h"
#include "node/session_run.h"

#define TICK_MS 500

struct sp_session_sweep {
    struct sp_node *node;
    GThread *thread;
    GMutex lock;
    GCond changed;
    bool stopping;
};

static void *sweep_thread(void *data)
{
    struct sp_session_sweep *sweep = data;
    g_mutex_lock(&sweep->lock);
    while (!sweep->stopping) {
        g_mutex_unlock(&sweep->lock);
        g_autoptr(GPtrArray) due = sp_sessions_sweep(sweep->node->sessions);
        for (guint i = 0; i < due->len && !sp_node_stopping(sweep->node); i++)
            sp_session_look(sweep->node, due->pdata[i]);
        g_mutex_lock(&sweep->lock);
        int64_t until = sp_time_monotonic_us() + TICK_MS * 1000;
        while (!sweep->stopping && g_cond_wait_until(&sweep->changed, &sweep->lock, until)) {
        }
    }
    g_mutex_unlock(&sweep->lock);
    return NULL;
}

struct sp_session_sweep *sp_session_sweep_start(struct sp_node *node)
{
    struct sp_session_sweep *sweep = g_new0(struct sp_session_sweep, 1);
    sweep->node = node;
    g_mutex_init(&sweep->lock);
    g_cond_init(&sweep->changed);
    sweep->thread = g_thread_new("sweep", sweep_thread, sweep);
    return sweep;
}

void sp_session_sweep_stop(struct sp_session_sweep *sweep)
{
    g_mutex_lock(&sweep->lock);
    sweep->stopping = true;
    g_cond_signal(&sweep->changed);
    g_mutex_unlock(&sweep->lock);
    g_thread_join(sweep->thread);
    g_mutex_clear(&sweep->lock);
    g_cond_clear(&sweep->changed);
    g_free(sweep);
}
