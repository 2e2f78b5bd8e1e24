/*
 * Wakes the waiters of a topic, in this process and, when the database is shared, in the other
 * servers too. Topics share buckets: a collision costs a re-read.
 *
 * What the database tells of other servers is a hint that can be lost, so with a shared one a wait
 * is cut into pieces of SLICE_MS: the caller re-reads after each.
 */
#include <string.h>

#include "base/time.h"
#include "store/internal.h"

#define N_BUCKETS 64
#define SLICE_MS 1000

struct sp_changes {
    GMutex lock; /* a leaf: nothing else is taken while it is held */
    bool stopping;
    struct {
        GCond cond;
        uint64_t count;
    } buckets[N_BUCKETS];
};

struct sp_changes *sp_changes_new(void)
{
    struct sp_changes *changes = g_new0(struct sp_changes, 1);
    g_mutex_init(&changes->lock);
    for (unsigned i = 0; i < N_BUCKETS; i++)
        g_cond_init(&changes->buckets[i].cond);
    return changes;
}

void sp_changes_free(struct sp_changes *changes)
{
    g_mutex_clear(&changes->lock);
    for (unsigned i = 0; i < N_BUCKETS; i++)
        g_cond_clear(&changes->buckets[i].cond);
    g_free(changes);
}

static unsigned bucket_of(const char *topic)
{
    return g_str_hash(topic) % N_BUCKETS;
}

uint64_t sp_store_ticket(struct sp_store *store, const char *topic)
{
    struct sp_changes *changes = store->changes;
    g_mutex_lock(&changes->lock);
    uint64_t ticket = changes->buckets[bucket_of(topic)].count;
    g_mutex_unlock(&changes->lock);
    return ticket;
}

void sp_store_wait(struct sp_store *store, const char *topic, uint64_t ticket,
                   int64_t deadline_monotonic_ms)
{
    struct sp_changes *changes = store->changes;
    unsigned b = bucket_of(topic);
    if (sp_db_shared(store->db))
        deadline_monotonic_ms = MIN(deadline_monotonic_ms, sp_time_monotonic_ms() + SLICE_MS);
    g_mutex_lock(&changes->lock);
    while (!changes->stopping && changes->buckets[b].count == ticket) {
        /* g_cond_wait_until counts g_get_monotonic_time(): CLOCK_MONOTONIC, as ours */
        if (!g_cond_wait_until(&changes->buckets[b].cond, &changes->lock,
                               deadline_monotonic_ms * 1000))
            break;
    }
    g_mutex_unlock(&changes->lock);
}

void sp_changes_heard(const char *topic, void *user)
{
    struct sp_changes *changes = user;
    unsigned first = topic ? bucket_of(topic) : 0;
    unsigned last = topic ? first : N_BUCKETS - 1;
    g_mutex_lock(&changes->lock);
    for (unsigned b = first; b <= last; b++) {
        changes->buckets[b].count++;
        g_cond_broadcast(&changes->buckets[b].cond);
    }
    g_mutex_unlock(&changes->lock);
}

void sp_store_publish(struct sp_store *store, const char *topic)
{
    sp_changes_heard(topic, store->changes);
    sp_db_notify(store->db, topic);
}

void sp_store_wake_all(struct sp_store *store)
{
    struct sp_changes *changes = store->changes;
    g_mutex_lock(&changes->lock);
    changes->stopping = true;
    for (unsigned i = 0; i < N_BUCKETS; i++)
        g_cond_broadcast(&changes->buckets[i].cond);
    g_mutex_unlock(&changes->lock);
}

char *sp_store_node_topic(const char *node)
{
    return g_strconcat("node:", node, NULL);
}
