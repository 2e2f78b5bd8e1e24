#include "node/outbox.h"

#include "base/error.h"
#include "base/log.h"
#include "base/time.h"

#define BATCH 100u
#define PAUSE_MIN_MS 100
#define PAUSE_MAX_MS 5000

struct sp_outbox {
    const char *name;
    const struct sp_outbox_ops *ops;
    void *user;
    GThread *thread;
    GMutex lock; /* a leaf */
    GCond changed;
    bool stopping;
    GHashTable *reports; /* id → json_t *, both owned */
    GQueue order;        /* ids of reports, owned; each once */
};

static void put_locked(struct sp_outbox *outbox, const char *id, json_t *report)
{
    if (!g_hash_table_contains(outbox->reports, id))
        g_queue_push_tail(&outbox->order, g_strdup(id));
    g_hash_table_insert(outbox->reports, g_strdup(id), report);
}

void sp_outbox_put(struct sp_outbox *outbox, const char *id, json_t *report)
{
    g_mutex_lock(&outbox->lock);
    put_locked(outbox, id, report);
    g_cond_signal(&outbox->changed);
    g_mutex_unlock(&outbox->lock);
}

/* Takes a batch out of the queue; the lock is held. */
static void take_batch(struct sp_outbox *outbox, GPtrArray *ids, json_t *list)
{
    while (ids->len < BATCH && !g_queue_is_empty(&outbox->order)) {
        char *id = g_queue_pop_head(&outbox->order);
        json_array_append(list, g_hash_table_lookup(outbox->reports, id));
        g_hash_table_remove(outbox->reports, id);
        g_ptr_array_add(ids, id);
    }
}

/* Puts back what was not taken, but for subjects that have a newer report by now. */
static void put_back(struct sp_outbox *outbox, GPtrArray *ids, json_t *list)
{
    g_mutex_lock(&outbox->lock);
    for (guint i = 0; i < ids->len; i++) {
        if (!g_hash_table_contains(outbox->reports, ids->pdata[i]))
            put_locked(outbox, ids->pdata[i], json_incref(json_array_get(list, i)));
    }
    g_mutex_unlock(&outbox->lock);
}

static void tell(struct sp_outbox *outbox, GPtrArray *ids, json_t *list, bool taken)
{
    for (guint i = 0; outbox->ops->taken && i < ids->len; i++)
        outbox->ops->taken(outbox->user, ids->pdata[i], json_array_get(list, i), taken);
}

/* Whether sending the same again can help. */
static bool is_temporary(const GError *error)
{
    int status = sp_error_http_status(error);
    return status >= 500 || status == 429 || status == 401 || status == 403;
}

/* One refused report must not hold up the others: each alone. False: a temporary failure. */
static bool send_singly(struct sp_outbox *outbox, GPtrArray *ids, json_t *list)
{
    while (ids->len > 0) {
        g_autoptr(GError) error = NULL;
        json_t *one = json_array();
        json_array_append(one, json_array_get(list, 0));
        bool taken = outbox->ops->send(outbox->user, one, &error);
        json_decref(one);
        if (!taken && is_temporary(error))
            return false;
        if (!taken)
            sp_log_error("the server refused a report", error, "kind", outbox->name, "id",
                         ids->pdata[0], NULL);
        if (outbox->ops->taken)
            outbox->ops->taken(outbox->user, ids->pdata[0], json_array_get(list, 0), taken);
        json_array_remove(list, 0);
        g_ptr_array_remove_index(ids, 0);
    }
    return true;
}

/* Sends one batch; false when it has to be sent again. */
static bool send_batch(struct sp_outbox *outbox, GPtrArray *ids, json_t *list)
{
    g_autoptr(GError) error = NULL;
    if (outbox->ops->send(outbox->user, list, &error)) {
        tell(outbox, ids, list, true);
        return true;
    }
    if (!is_temporary(error) && send_singly(outbox, ids, list))
        return true;
    put_back(outbox, ids, list);
    return false;
}

static void *outbox_thread(void *data)
{
    struct sp_outbox *outbox = data;
    int64_t pause_ms = 0;
    g_mutex_lock(&outbox->lock);
    while (!outbox->stopping) {
        if (g_queue_is_empty(&outbox->order)) {
            g_cond_wait(&outbox->changed, &outbox->lock);
            continue;
        }
        int64_t until = sp_time_monotonic_us() + pause_ms * 1000;
        while (pause_ms > 0 && !outbox->stopping &&
               g_cond_wait_until(&outbox->changed, &outbox->lock, until)) {
        }
        if (outbox->stopping)
            break;
        g_autoptr(GPtrArray) ids = g_ptr_array_new_with_free_func(g_free);
        json_t *list = json_array();
        take_batch(outbox, ids, list);
        g_mutex_unlock(&outbox->lock);
        bool sent = send_batch(outbox, ids, list);
        json_decref(list);
        pause_ms = sent ? 0 : CLAMP(pause_ms * 2, PAUSE_MIN_MS, PAUSE_MAX_MS);
        g_mutex_lock(&outbox->lock);
    }
    g_mutex_unlock(&outbox->lock);
    return NULL;
}

struct sp_outbox *sp_outbox_new(const char *name, const struct sp_outbox_ops *ops, void *user)
{
    struct sp_outbox *outbox = g_new0(struct sp_outbox, 1);
    outbox->name = name;
    outbox->ops = ops;
    outbox->user = user;
    g_mutex_init(&outbox->lock);
    g_cond_init(&outbox->changed);
    g_queue_init(&outbox->order);
    outbox->reports =
        g_hash_table_new_full(g_str_hash, g_str_equal, g_free, (GDestroyNotify)json_decref);
    outbox->thread = g_thread_new(name, outbox_thread, outbox);
    return outbox;
}

void sp_outbox_free(struct sp_outbox *outbox)
{
    g_mutex_lock(&outbox->lock);
    outbox->stopping = true;
    g_cond_signal(&outbox->changed);
    g_mutex_unlock(&outbox->lock);
    g_thread_join(outbox->thread);
    g_hash_table_destroy(outbox->reports);
    g_queue_clear_full(&outbox->order, g_free);
    g_mutex_clear(&outbox->lock);
    g_cond_clear(&outbox->changed);
    g_free(outbox);
}
