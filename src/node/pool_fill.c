/* The thread of the pools: how many members there should be, who makes them, who removes them. */
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/time.h"
#include "disk/volume.h"
#include "node/drivers.h"
#include "node/pool_private.h"

#define TICK_MS 1000
#define RETRY_MIN_MS 1000
#define RETRY_MAX_MS (5 * 60 * 1000)
#define DESTROY_AGAIN_MS 10000
#define YIELD_STEP_MS 20
#define YIELD_MAX_MS 5000
#define LOOK_MS 1000
#define MAKER_NICE 10
#define MIB (INT64_C(1) << 20)
/* What a member takes, rather too much: an idle VM has been measured at 9 to 15 MiB. */
#define CONTAINER_BYTES (2 * MIB)
#define MICROVM_BYTES (24 * MIB)
#define DISK_BYTES (16 * MIB)

static uint64_t mix(uint64_t sum, const char *path)
{
    struct stat st = {0};
    if (path)
        stat(path, &st);
    const uint64_t parts[] = {(uint64_t)st.st_ino, (uint64_t)st.st_size,
                              (uint64_t)st.st_mtim.tv_sec, (uint64_t)st.st_mtim.tv_nsec};
    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++)
        sum = (sum ^ parts[i]) * UINT64_C(0x100000001b3); /* FNV-1a, by words */
    return sum;
}

uint64_t sp_pool_stamp(const struct sp_pool *pool)
{
    const struct sp_worker_config *config = pool->node->config;
    g_autofree char *kernel =
        config->guest_dir ? g_build_filename(config->guest_dir, "vmlinux", NULL) : NULL;
    uint64_t sum = mix(UINT64_C(0xcbf29ce484222325), config->agent_path);
    sum = mix(sum, kernel);
    return mix(sum, pool->qemu_path);
}

bool sp_pool_wait_turn(struct sp_pool *pool)
{
    for (int waited = 0; waited < YIELD_MAX_MS; waited += YIELD_STEP_MS) {
        if (sp_node_stopping(pool->node))
            return false;
        if (g_atomic_int_get(&pool->creating) == 0)
            return true;
        g_usleep(YIELD_STEP_MS * 1000);
    }
    return true;
}

void sp_pool_doom(struct sp_pool *pool, struct sp_pool_member *member)
{
    g_mutex_lock(&pool->lock);
    g_queue_push_tail(&pool->doomed, member);
    g_cond_broadcast(&pool->changed);
    g_mutex_unlock(&pool->lock);
}

/* --- making */

/* A member was made, or not. The lock is held. */
static void settle(struct sp_pool *pool, struct sp_pool_key *key, struct sp_pool_member *member,
                   bool made, int64_t took_ms)
{
    key->filling--;
    pool->filling--;
    if (made) {
        key->failures = 0;
        sp_pool_demand_made(&key->demand, took_ms);
    } else {
        int64_t pause = RETRY_MIN_MS << MIN(key->failures, 20u);
        key->failures++;
        key->retry_ms = sp_time_monotonic_ms() + MIN(pause, (int64_t)RETRY_MAX_MS);
    }
    if (made && !key->forgotten && !pool->stopping)
        g_queue_push_tail(&key->ready, member);
    else
        g_queue_push_tail(&pool->doomed, member);
    g_cond_broadcast(&pool->changed);
}

void sp_pool_fill(void *data, void *user)
{
    struct sp_pool_job *job = data;
    struct sp_pool_key *key = job->key;
    struct sp_pool *pool = user;
    bool vmm = job->vmm;
    g_free(job);
    /* Of this thread only (setpriority(2), NOTES): creates come first. */
    setpriority(PRIO_PROCESS, (id_t)gettid(), MAKER_NICE);
    if (vmm) {
        sp_pool_vmm_start(pool, key);
        sp_pool_key_unref(key);
        return;
    }
    struct sp_pool_member *member = sp_pool_member_new(pool, key);
    g_mutex_lock(&pool->lock);
    member->stamp = pool->stamp;
    sp_pool_count_locked(pool, member);
    g_mutex_unlock(&pool->lock);
    g_autoptr(GError) error = NULL;
    bool turn = sp_pool_wait_turn(pool);
    int64_t began_ms = sp_time_monotonic_ms();
    bool made = turn && sp_pool_member_make(member, &error);
    if (turn && !made && !sp_node_stopping(pool->node))
        sp_log_error("a member of a pool could not be made", error, "template",
                     key->spec->template_digest, "tier", key->spec->isolation, NULL);
    g_mutex_lock(&pool->lock);
    settle(pool, key, member, made, sp_time_monotonic_ms() - began_ms);
    g_mutex_unlock(&pool->lock);
    sp_pool_key_unref(key);
}

/* --- how many */

static int64_t member_bytes(const struct sp_pool_key *key)
{
    return strcmp(key->spec->isolation, "microvm") == 0 ? MICROVM_BYTES : CONTAINER_BYTES;
}

/* MemAvailable of /proc/meminfo (proc(5)), bytes. */
static int64_t available_bytes(void)
{
    g_autofree char *text = NULL;
    if (!g_file_get_contents("/proc/meminfo", &text, NULL, NULL))
        return 0;
    const char *line = strstr(text, "MemAvailable:");
    return line ? g_ascii_strtoll(line + strlen("MemAvailable:"), NULL, 10) * 1024 : 0;
}

/* What the host can spare: a quarter of the memory that would be free without the pools. */
static int64_t memory_budget(const struct sp_pool *pool, int64_t in_use)
{
    int64_t spare = (pool->available_bytes + in_use) / 4;
    return pool->memory_bytes ? MIN(spare, pool->memory_bytes) : spare / 2;
}

static unsigned member_budget(const struct sp_pool *pool, unsigned in_use)
{
    int64_t by_disk = pool->free_disk_bytes / 8 / DISK_BYTES + in_use;
    return (unsigned)MIN((int64_t)pool->max, by_disk);
}

static int latest_first(const void *a, const void *b)
{
    const struct sp_pool_key *const *left = a, *const *right = b;
    int64_t l = (*left)->demand.last_ms, r = (*right)->demand.last_ms;
    return l < r ? 1 : l > r ? -1 : strcmp((*left)->text, (*right)->text);
}

/* All keys, the one that was asked for last first. The lock is held; borrowed. */
static GPtrArray *sorted_keys(struct sp_pool *pool)
{
    GPtrArray *keys = g_ptr_array_new();
    GHashTableIter iter;
    void *value;
    g_hash_table_iter_init(&iter, pool->keys);
    while (g_hash_table_iter_next(&iter, NULL, &value))
        g_ptr_array_add(keys, value);
    g_ptr_array_sort(keys, latest_first);
    return keys;
}

static void set_marks(struct sp_pool *pool, GPtrArray *keys)
{
    int64_t now = sp_time_monotonic_ms(), bytes = 0;
    unsigned members = 0;
    g_autofree struct sp_pool_want *wants = g_new0(struct sp_pool_want, keys->len + 1);
    for (guint i = 0; i < keys->len; i++) {
        struct sp_pool_key *key = keys->pdata[i];
        bool wanted = key->usable && !key->forgotten;
        wants[i].member_bytes = member_bytes(key);
        if (wanted)
            wants[i].marks = sp_pool_target(&key->demand, now, i == 0, pool->min, pool->max);
        members += key->ready.length + key->filling;
        bytes += (key->ready.length + key->filling) * wants[i].member_bytes;
    }
    sp_pool_share(wants, keys->len, member_budget(pool, members), memory_budget(pool, bytes));
    for (guint i = 0; i < keys->len; i++)
        ((struct sp_pool_key *)keys->pdata[i])->marks = wants[i].marks;
}

/* --- the turns of the thread, each with the lock held */

/* Dead members, those made of other files than today's, and one too many a turn. */
static void weed(struct sp_pool *pool, struct sp_pool_key *key)
{
    for (GList *at = key->ready.head, *next; at; at = next) {
        struct sp_pool_member *member = at->data;
        next = at->next;
        if (!g_atomic_int_get(&member->gone) && member->stamp == pool->stamp && !key->forgotten)
            continue;
        g_queue_delete_link(&key->ready, at);
        g_queue_push_tail(&pool->doomed, member);
    }
    if (key->ready.length > key->marks.high)
        g_queue_push_tail(&pool->doomed, g_queue_pop_head(&key->ready));
}

/* The reference passes to the job. */
static void push(struct sp_pool *pool, struct sp_pool_key *key, bool vmm)
{
    struct sp_pool_job *job = g_new0(struct sp_pool_job, 1);
    *job = (struct sp_pool_job){key, vmm};
    g_thread_pool_push(pool->makers, job, NULL);
}

static void fill(struct sp_pool *pool, struct sp_pool_key *key, int64_t now_ms)
{
    unsigned have = key->ready.length + key->filling;
    if (have >= key->marks.high)
        key->below = false;
    else if (have < key->marks.low)
        key->below = true;
    while (key->below && have < key->marks.high && pool->filling < SP_POOL_MAKERS &&
           now_ms >= key->retry_ms) {
        have++;
        key->filling++;
        pool->filling++;
        push(pool, sp_pool_key_ref(key), false);
    }
}

static gboolean is_dead_key(void *text, void *value, void *user)
{
    struct sp_pool_key *key = value;
    int64_t now_ms = *(int64_t *)user;
    return key->members == 0 && key->marks.high == 0 &&
           now_ms - key->demand.last_ms >= SP_POOL_FORGET_MS;
}

static void plan(struct sp_pool *pool)
{
    int64_t now = sp_time_monotonic_ms();
    g_autoptr(GPtrArray) keys = sorted_keys(pool);
    set_marks(pool, keys);
    for (guint i = 0; i < keys->len; i++) {
        weed(pool, keys->pdata[i]);
        if (!pool->stopping)
            fill(pool, keys->pdata[i], now);
    }
    struct sp_pool_key *key = pool->stopping ? NULL : sp_pool_vmm_needed(pool);
    if (key) {
        pool->starting = true;
        push(pool, key, true);
    }
    g_hash_table_foreach_remove(pool->keys, is_dead_key, &now);
}

/* Destroys what is doomed; releases the lock meanwhile. What stays is tried again later. */
static void destroy_doomed(struct sp_pool *pool, int64_t *retry_ms)
{
    GQueue left = G_QUEUE_INIT;
    struct sp_pool_member *member;
    if (sp_time_monotonic_ms() < *retry_ms)
        return;
    while (!pool->stopping && (member = g_queue_pop_head(&pool->doomed))) {
        g_mutex_unlock(&pool->lock);
        bool gone = sp_pool_member_destroy(member);
        g_mutex_lock(&pool->lock);
        if (gone)
            sp_pool_uncount_locked(pool, member);
        else
            g_queue_push_tail(&left, member);
    }
    if (left.length > 0)
        *retry_ms = sp_time_monotonic_ms() + DESTROY_AGAIN_MS;
    while ((member = g_queue_pop_head(&left)))
        g_queue_push_tail(&pool->doomed, member);
}

/* Looks at the host, now and then; releases the lock meanwhile. */
static void look_around(struct sp_pool *pool, int64_t *looked_ms)
{
    int64_t now = sp_time_monotonic_ms();
    if (*looked_ms && now - *looked_ms < LOOK_MS)
        return;
    *looked_ms = now;
    g_mutex_unlock(&pool->lock);
    uint64_t stamp = sp_pool_stamp(pool);
    int64_t available = available_bytes();
    int64_t free_disk = (int64_t)sp_volume_free_bytes(pool->node->volume);
    g_mutex_lock(&pool->lock);
    pool->stamp = stamp;
    pool->available_bytes = available;
    pool->free_disk_bytes = free_disk;
}

void *sp_pool_thread(void *data)
{
    struct sp_pool *pool = data;
    int64_t retry_ms = 0, looked_ms = 0;
    g_mutex_lock(&pool->lock);
    while (!pool->stopping) {
        look_around(pool, &looked_ms);
        destroy_doomed(pool, &retry_ms);
        sp_pool_vmms_weed(pool);
        if (pool->stopping)
            break;
        plan(pool);
        if (pool->doomed.length > 0 && sp_time_monotonic_ms() >= retry_ms)
            continue;
        bool idle = g_hash_table_size(pool->keys) == 0 && pool->doomed.length == 0;
        if (idle)
            g_cond_wait(&pool->changed, &pool->lock);
        else
            g_cond_wait_until(&pool->changed, &pool->lock, sp_time_monotonic_us() + TICK_MS * 1000);
    }
    g_mutex_unlock(&pool->lock);
    return NULL;
}
