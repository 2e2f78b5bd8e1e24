#include "control/controller.h"

#include "base/log.h"
#include "base/time.h"
#include "control/placement.h"

#define RETRY_MS 5000
#define LONGEST_WAIT_MS (10 * 60 * 1000)
#define QUIET_MS 200 /* between two sweeps: a burst of creates asks for one, not for hundreds */

struct sp_controller {
    struct sp_store *store;
    GThread *thread;
    gint stopping;
    GHashTable *ready; /* node name → GINT_TO_POINTER(was ready at the last look); owned names */
    GMutex lock;       /* only for pause */
    GCond pause;
};

static int64_t sweep(struct sp_controller *c, int64_t now)
{
    g_autoptr(GError) error = NULL;
    struct sp_sweep_result result;
    if (!sp_store_sweep(c->store, now, &result, &error)) {
        sp_log_error("sweep failed", error, NULL);
        return now + RETRY_MS;
    }
    if (result.timed_out > 0 || result.expired > 0) {
        char timed_out[24], expired[24];
        g_snprintf(timed_out, sizeof timed_out, "%" G_GINT64_FORMAT, result.timed_out);
        g_snprintf(expired, sizeof expired, "%" G_GINT64_FORMAT, result.expired);
        sp_log(SP_LOG_INFO, "overdue operations ended, expired sandboxes deleted", "timed_out",
               timed_out, "expired", expired, NULL);
    }
    return result.next_at_ms;
}

/* Logs a node that comes or goes; returns when the next lease ends. */
static int64_t look_at_nodes(struct sp_controller *c, int64_t now)
{
    int64_t next = now + LONGEST_WAIT_MS;
    g_autoptr(GError) error = NULL;
    g_autoptr(GPtrArray) nodes = sp_store_node_list(c->store, &error);
    if (!nodes) {
        sp_log_error("reading the nodes failed", error, NULL);
        return now + RETRY_MS;
    }
    for (unsigned i = 0; i < nodes->len; i++) {
        const struct sp_node_row *node = nodes->pdata[i];
        int ready = sp_node_ready(node, now);
        int before = GPOINTER_TO_INT(g_hash_table_lookup(c->ready, node->name));
        if (ready != before) {
            sp_log(ready ? SP_LOG_INFO : SP_LOG_WARNING,
                   ready ? "node is ready" : "node is not ready: its lease has run out", "node",
                   node->name, NULL);
            g_hash_table_insert(c->ready, g_strdup(node->name), GINT_TO_POINTER(ready));
        }
        if (ready)
            next = MIN(next, node->lease_expires_at_ms);
    }
    return next;
}

static gpointer run(gpointer user)
{
    struct sp_controller *c = user;
    while (!g_atomic_int_get(&c->stopping)) {
        uint64_t ticket = sp_store_ticket(c->store, SP_TOPIC_CONTROLLER);
        int64_t now = sp_time_now_ms();
        int64_t swept = sweep(c, now);
        int64_t next = MIN(swept, look_at_nodes(c, now));
        sp_store_wait(c->store, SP_TOPIC_CONTROLLER, ticket,
                      sp_time_monotonic_ms() + MAX(next - now, 1));
        g_mutex_lock(&c->lock);
        if (!g_atomic_int_get(&c->stopping))
            g_cond_wait_until(&c->pause, &c->lock, g_get_monotonic_time() + QUIET_MS * 1000);
        g_mutex_unlock(&c->lock);
    }
    return NULL;
}

struct sp_controller *sp_controller_start(struct sp_store *store)
{
    struct sp_controller *c = g_new0(struct sp_controller, 1);
    c->store = store;
    c->ready = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_mutex_init(&c->lock);
    g_cond_init(&c->pause);
    c->thread = g_thread_new("controller", run, c);
    return c;
}

void sp_controller_stop(struct sp_controller *c)
{
    if (!c)
        return;
    g_mutex_lock(&c->lock);
    g_atomic_int_set(&c->stopping, 1);
    g_cond_signal(&c->pause);
    g_mutex_unlock(&c->lock);
    sp_store_publish(c->store, SP_TOPIC_CONTROLLER);
    g_thread_join(c->thread);
    g_hash_table_unref(c->ready);
    g_mutex_clear(&c->lock);
    g_cond_clear(&c->pause);
    g_free(c);
}
