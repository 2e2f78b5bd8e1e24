#include "node/pool.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/time.h"
#include "node/drivers.h"
#include "node/pool_private.h"

#define MAX_KEYS 256u
#define DRAINERS 4
#define FORGET_MS 15000

/* --- keys */

struct sp_pool_key *sp_pool_key_ref(struct sp_pool_key *key)
{
    g_atomic_int_inc(&key->refs);
    return key;
}

void sp_pool_key_unref(struct sp_pool_key *key)
{
    if (!key || !g_atomic_int_dec_and_test(&key->refs))
        return;
    sp_sandbox_spec_unref(key->spec);
    g_free(key->text);
    g_free(key);
}

static char *key_text(const struct sp_sandbox_spec *spec)
{
    char cpus[G_ASCII_DTOSTR_BUF_SIZE];
    const struct sp_shape *shape = &spec->shape;
    g_ascii_dtostr(cpus, sizeof(cpus), shape->cpus);
    return g_strdup_printf("%s %s %s %" G_GINT64_FORMAT " %" G_GINT64_FORMAT " %" G_GINT64_FORMAT,
                           spec->template_digest, spec->isolation, cpus, (gint64)shape->memory_mb,
                           (gint64)shape->disk_mb, (gint64)shape->pids);
}

/* The template's own user and environment, under a name of no sandbox. */
static struct sp_sandbox_spec *member_spec(const struct sp_sandbox_spec *spec)
{
    struct sp_sandbox_spec *own = g_new0(struct sp_sandbox_spec, 1);
    own->refs = 1;
    own->template_digest = g_strdup(spec->template_digest);
    own->isolation = g_strdup(spec->isolation);
    own->hostname = g_strdup("space-pool");
    own->shape = spec->shape;
    return own;
}

struct sp_pool_key *sp_pool_key_locked(struct sp_pool *pool, const struct sp_sandbox_spec *spec,
                                       bool make)
{
    g_autofree char *text = key_text(spec);
    struct sp_pool_key *key = g_hash_table_lookup(pool->keys, text);
    if (key || !make || g_hash_table_size(pool->keys) >= MAX_KEYS)
        return key;
    key = g_new0(struct sp_pool_key, 1);
    key->refs = 1;
    key->text = g_steal_pointer(&text);
    key->spec = member_spec(spec);
    g_queue_init(&key->ready);
    g_hash_table_insert(pool->keys, key->text, key);
    return key;
}

void sp_pool_count_locked(struct sp_pool *pool, struct sp_pool_member *member)
{
    g_hash_table_add(pool->names, g_strdup(member->name));
    if (member->key)
        member->key->members++;
    else
        pool->leftovers++;
}

void sp_pool_uncount_locked(struct sp_pool *pool, struct sp_pool_member *member)
{
    g_hash_table_remove(pool->names, member->name);
    if (member->key)
        member->key->members--;
    else
        pool->leftovers--;
    sp_pool_member_free(member);
    g_cond_broadcast(&pool->changed);
}

/* --- life */

struct sp_pool *sp_pool_new(struct sp_node *node)
{
    const struct sp_worker_config *config = node->config;
    struct sp_pool *pool = g_new0(struct sp_pool, 1);
    pool->node = node;
    pool->root = g_build_filename(config->state_dir, "run", "pool", NULL);
    pool->max = config->pool_max;
    pool->min = MIN(config->pool_min, config->pool_max);
    pool->memory_bytes = (int64_t)config->pool_memory_mb << 20;
    g_mutex_init(&pool->lock);
    g_cond_init(&pool->changed);
    pool->keys =
        g_hash_table_new_full(g_str_hash, g_str_equal, NULL, (GDestroyNotify)sp_pool_key_unref);
    pool->names = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_queue_init(&pool->doomed);
    pool->vmms = g_ptr_array_new();
    if (mkdir(pool->root, 0711) < 0 && errno != EEXIST)
        sp_log(SP_LOG_ERROR, "the directory of the pools cannot be made", "path", pool->root, NULL);
    sp_pool_members_find(pool, &pool->doomed);
    for (GList *at = pool->doomed.head; at; at = at->next)
        sp_pool_count_locked(pool, at->data);
    pool->qemu_path = g_find_program_in_path("qemu-system-x86_64");
    return pool;
}

void sp_pool_start(struct sp_pool *pool)
{
    pool->makers = g_thread_pool_new(sp_pool_fill, pool, SP_POOL_MAKERS, FALSE, NULL);
    pool->thread = g_thread_new("pool", sp_pool_thread, pool);
}

/* Whatever exists is doomed. The lock is held. */
static void doom_all(struct sp_pool *pool)
{
    GHashTableIter iter;
    void *value;
    g_hash_table_iter_init(&iter, pool->keys);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        struct sp_pool_key *key = value;
        struct sp_pool_member *member;
        while ((member = g_queue_pop_head(&key->ready)))
            g_queue_push_tail(&pool->doomed, member);
    }
}

struct drain {
    struct sp_pool *pool;
    int64_t deadline_ms;
    gint running; /* atomic */
};

static void *drain_thread(void *data)
{
    struct drain *drain = data;
    struct sp_pool *pool = drain->pool;
    g_mutex_lock(&pool->lock);
    while (pool->doomed.length > 0 && sp_time_monotonic_ms() < drain->deadline_ms) {
        struct sp_pool_member *member = g_queue_pop_head(&pool->doomed);
        g_mutex_unlock(&pool->lock);
        bool gone = sp_pool_member_destroy(member);
        g_mutex_lock(&pool->lock);
        if (gone)
            sp_pool_uncount_locked(pool, member);
    }
    g_atomic_int_add(&drain->running, -1);
    g_cond_broadcast(&pool->changed);
    g_mutex_unlock(&pool->lock);
    return NULL;
}

/* Destroys all that is doomed, several at once. False: the time was up. */
static bool drain(struct sp_pool *pool, int64_t deadline_ms)
{
    /* Outlives this call when a driver hangs; then the worker ends without it. */
    struct drain *drain = g_new0(struct drain, 1);
    *drain = (struct drain){pool, deadline_ms, DRAINERS};
    for (unsigned i = 0; i < DRAINERS; i++)
        g_thread_unref(g_thread_new("drain", drain_thread, drain));
    g_mutex_lock(&pool->lock);
    while (g_atomic_int_get(&drain->running) > 0 &&
           g_cond_wait_until(&pool->changed, &pool->lock, deadline_ms * 1000)) {
    }
    bool done = g_atomic_int_get(&drain->running) == 0;
    done = done && pool->doomed.length == 0;
    bool free_it = g_atomic_int_get(&drain->running) == 0;
    g_mutex_unlock(&pool->lock);
    if (free_it)
        g_free(drain);
    return done;
}

bool sp_pool_stop(struct sp_pool *pool, int64_t timeout_ms)
{
    int64_t deadline_ms = sp_time_monotonic_ms() + timeout_ms;
    if (!pool->thread)
        return true;
    g_mutex_lock(&pool->lock);
    pool->stopping = true;
    g_cond_broadcast(&pool->changed);
    g_mutex_unlock(&pool->lock);
    g_thread_join(g_steal_pointer(&pool->thread)); /* at most one destroy() */
    g_mutex_lock(&pool->lock);
    doom_all(pool);
    g_mutex_unlock(&pool->lock);
    bool done = drain(pool, deadline_ms);
    /* Members that were being made come to be doomed, too. */
    g_mutex_lock(&pool->lock);
    while ((pool->filling > 0 || pool->starting) &&
           g_cond_wait_until(&pool->changed, &pool->lock, deadline_ms * 1000)) {
    }
    bool filling = pool->filling > 0 || pool->starting;
    g_mutex_unlock(&pool->lock);
    if (!done || filling)
        return false;
    g_thread_pool_free(pool->makers, TRUE, TRUE);
    pool->makers = NULL;
    return drain(pool, deadline_ms);
}

void sp_pool_free(struct sp_pool *pool)
{
    struct sp_pool_member *member;
    while ((member = g_queue_pop_head(&pool->doomed))) {
        sp_pool_member_release(member);
        sp_pool_member_free(member);
    }
    for (guint i = 0; i < pool->vmms->len; i++)
        sp_pool_vmm_free(pool->vmms->pdata[i]);
    g_ptr_array_unref(pool->vmms);
    g_hash_table_destroy(pool->keys);
    g_hash_table_destroy(pool->names);
    g_mutex_clear(&pool->lock);
    g_cond_clear(&pool->changed);
    g_free(pool->root);
    g_free(pool->qemu_path);
    g_free(pool);
}

/* --- demand */

void sp_pool_create_began(struct sp_pool *pool, const struct sp_sandbox_spec *spec)
{
    g_atomic_int_inc(&pool->creating);
    if (pool->max == 0)
        return;
    g_mutex_lock(&pool->lock);
    struct sp_pool_key *key = sp_pool_key_locked(pool, spec, true);
    if (key)
        sp_pool_demand_note(&key->demand, sp_time_monotonic_ms());
    g_mutex_unlock(&pool->lock);
}

void sp_pool_create_ended(struct sp_pool *pool, const struct sp_sandbox_spec *spec, bool made)
{
    g_atomic_int_add(&pool->creating, -1);
    if (pool->max == 0)
        return;
    g_mutex_lock(&pool->lock);
    struct sp_pool_key *key = sp_pool_key_locked(pool, spec, false);
    struct sp_driver *driver = sp_drivers_find(pool->node->drivers, spec->isolation);
    if (key && made && driver && driver->ops->claim) {
        key->usable = true;
        key->forgotten = false;
    }
    g_cond_broadcast(&pool->changed);
    g_mutex_unlock(&pool->lock);
}

/* Marks the keys of a template; how many members may use it. The lock is held. */
static unsigned forget(struct sp_pool *pool, const char *digest)
{
    unsigned members = pool->leftovers; /* of unknown templates */
    GHashTableIter iter;
    void *value;
    g_hash_table_iter_init(&iter, pool->keys);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        struct sp_pool_key *key = value;
        if (strcmp(key->spec->template_digest, digest) != 0)
            continue;
        key->forgotten = true;
        members += key->members;
    }
    for (guint i = 0; i < pool->vmms->len; i++) {
        struct sp_pool_vmm *vmm = pool->vmms->pdata[i];
        members += !vmm->missing && strcmp(vmm->key->spec->template_digest, digest) == 0;
    }
    return members;
}

bool sp_pool_forget_template(struct sp_pool *pool, const char *digest, GError **error)
{
    int64_t deadline_us = sp_time_monotonic_us() + FORGET_MS * (int64_t)1000;
    g_mutex_lock(&pool->lock);
    unsigned left;
    while ((left = forget(pool, digest)) > 0 && !pool->stopping) {
        g_cond_broadcast(&pool->changed);
        if (!g_cond_wait_until(&pool->changed, &pool->lock, deadline_us))
            break;
    }
    left = forget(pool, digest);
    g_mutex_unlock(&pool->lock);
    if (left > 0)
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "%u members of pools still use it",
                    left);
    return left == 0;
}

/* --- what can be seen */

static json_t *key_to_json(const struct sp_pool_key *key)
{
    const struct sp_shape *shape = &key->spec->shape;
    return json_pack("{s:s,s:s,s:f,s:I,s:I,s:I,s:i,s:i,s:i,s:i,s:I,s:I}", "template_digest",
                     key->spec->template_digest, "isolation", key->spec->isolation, "cpus",
                     shape->cpus, "memory_mb", (json_int_t)shape->memory_mb, "disk_mb",
                     (json_int_t)shape->disk_mb, "pids", (json_int_t)shape->pids, "ready",
                     (int)key->ready.length, "filling", (int)key->filling, "low",
                     (int)key->marks.low, "high", (int)key->marks.high, "hits",
                     (json_int_t)key->hits, "misses", (json_int_t)key->misses);
}

json_t *sp_pool_to_json(struct sp_pool *pool)
{
    json_t *list = json_array();
    GHashTableIter iter;
    void *value;
    g_mutex_lock(&pool->lock);
    g_hash_table_iter_init(&iter, pool->keys);
    while (g_hash_table_iter_next(&iter, NULL, &value))
        json_array_append_new(list, key_to_json(value));
    g_mutex_unlock(&pool->lock);
    return list;
}

char **sp_pool_names(struct sp_pool *pool)
{
    GPtrArray *names = g_ptr_array_new();
    GHashTableIter iter;
    void *name;
    g_mutex_lock(&pool->lock);
    g_hash_table_iter_init(&iter, pool->names);
    while (g_hash_table_iter_next(&iter, &name, NULL))
        g_ptr_array_add(names, g_strdup(name));
    for (guint i = 0; i < pool->vmms->len; i++)
        g_ptr_array_add(names, g_strdup(((struct sp_pool_vmm *)pool->vmms->pdata[i])->name));
    g_mutex_unlock(&pool->lock);
    g_ptr_array_add(names, NULL);
    return (char **)g_ptr_array_free(names, FALSE);
}
