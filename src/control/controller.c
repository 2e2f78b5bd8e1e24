#include "control/controller.h"

#include "base/log.h"
#include "base/time.h"
#include "control/placement.h"

#define RETRY_MS 5000
#define LONGEST_WAIT_MS (10 * 60 * 1000)
#define QUIET_MS 200 /* between two sweeps: a burst of creates asks for one, not for hundreds */
/* The lease with several servers: another one takes over LEASE_MS after this one's last renewal. We
 * stop LEASE_MARGIN_MS earlier by our own clock. */
#define LEASE_MS 6000
#define LEASE_MARGIN_MS 1000
#define RENEW_MS 2000
#define TRY_MS 1000

struct sp_controller {
    struct sp_store *store;
    GThread *thread;
    gint stopping;
    int64_t ask_at_ms;     /* monotonic: when to renew the lease, or to try for it */
    int64_t lead_until_ms; /* monotonic: our lease's end; 0: we have none */
    bool leads, unsure;    /* as logged last: that it is ours; that we could not ask */
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
    if (result.timed_out > 0 || result.expired > 0 || result.idle > 0) {
        char timed_out[24], expired[24], idle[24];
        g_snprintf(timed_out, sizeof timed_out, "%" G_GINT64_FORMAT, result.timed_out);
        g_snprintf(expired, sizeof expired, "%" G_GINT64_FORMAT, result.expired);
        g_snprintf(idle, sizeof idle, "%" G_GINT64_FORMAT, result.idle);
        sp_log(SP_LOG_INFO, "operations timed out, sandboxes expired or were idle", "timed_out",
               timed_out, "expired", expired, "idle", idle, NULL);
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

/* Asks for the lease, or for more of it. Without an answer what we have runs out. */
static void ask_for_lease(struct sp_controller *c, int64_t now_ms)
{
    g_autoptr(GError) error = NULL;
    bool held = false;
    if (sp_store_lease_take(c->store, SP_LEASE_CONTROLLER, LEASE_MS, &held, &error)) {
        /* counted from before the question: the database has counted from later */
        c->lead_until_ms = held ? now_ms + LEASE_MS - LEASE_MARGIN_MS : 0;
        c->unsure = false;
    } else if (!c->unsure) {
        c->unsure = true;
        sp_log_error("asking for the controller's lease failed", error, NULL);
    }
    c->ask_at_ms = now_ms + (held ? RENEW_MS : TRY_MS);
}

/* Whether this server is the one to act. *ret_again_ms (monotonic): when to ask at the latest. */
static bool leads(struct sp_controller *c, int64_t *ret_again_ms)
{
    if (!sp_store_shared(c->store)) {
        *ret_again_ms = G_MAXINT64;
        return true;
    }
    int64_t now_ms = sp_time_monotonic_ms();
    if (now_ms >= c->ask_at_ms)
        ask_for_lease(c, now_ms);
    bool leads = sp_time_monotonic_ms() < c->lead_until_ms;
    if (leads != c->leads) {
        c->leads = leads;
        sp_log(leads ? SP_LOG_INFO : SP_LOG_WARNING,
               leads ? "this server is the controller now"
                     : "this server is not the controller any more",
               NULL);
    }
    *ret_again_ms = c->ask_at_ms;
    return leads;
}

static gpointer run(gpointer user)
{
    struct sp_controller *c = user;
    while (!g_atomic_int_get(&c->stopping)) {
        uint64_t ticket = sp_store_ticket(c->store, SP_TOPIC_CONTROLLER);
        int64_t until_ms;
        if (leads(c, &until_ms)) {
            int64_t now = sp_time_now_ms();
            int64_t swept = sweep(c, now);
            int64_t next = MIN(swept, look_at_nodes(c, now));
            until_ms = MIN(until_ms, sp_time_monotonic_ms() + MAX(next - now, 1));
        }
        sp_store_wait(c->store, SP_TOPIC_CONTROLLER, ticket, until_ms);
        g_mutex_lock(&c->lock);
        if (!g_atomic_int_get(&c->stopping))
            g_cond_wait_until(&c->pause, &c->lock, g_get_monotonic_time() + QUIET_MS * 1000);
        g_mutex_unlock(&c->lock);
    }
    if (c->lead_until_ms > 0) { /* the next one need not wait for its end */
        sp_store_lease_release(c->store, SP_LEASE_CONTROLLER);
        sp_store_publish(c->store, SP_TOPIC_CONTROLLER);
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
