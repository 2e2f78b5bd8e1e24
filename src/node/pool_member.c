/* One member of a pool: making, waking, destroying. */
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/time.h"
#include "driver/record.h"
#include "node/pool_private.h"
#include "node/destroy_dir.h"

#define HOLD_MS 5000

struct sp_pool_member *sp_pool_member_new(struct sp_pool *pool, struct sp_pool_key *key)
{
    struct sp_pool_member *member = g_new0(struct sp_pool_member, 1);
    member->pool = pool;
    member->key = key ? sp_pool_key_ref(key) : NULL;
    member->slot = -1;
    sp_id_new("pool", member->name);
    sp_id_new("sbx", member->id);
    member->run_dir = g_build_filename(pool->root, member->name, NULL);
    return member;
}

void sp_pool_member_free(struct sp_pool_member *member)
{
    sp_pool_key_unref(member->key);
    g_free(member->run_dir);
    g_free(member);
}

/* In the link's thread. */
static void on_gone(void *data)
{
    struct sp_pool_member *member = data;
    g_mutex_lock(&member->pool->lock);
    g_atomic_int_set(&member->gone, 1);
    g_cond_broadcast(&member->pool->changed);
    g_mutex_unlock(&member->pool->lock);
}

int sp_pool_take_slot(struct sp_pool *pool)
{
    struct sp_table *table = pool->node->table;
    int slot = -1;
    g_mutex_lock(&table->lock);
    /* Most blocks are for sandboxes. */
    if (table->slots.n_used < SP_SLOTS / 4 * 3)
        slot = sp_slots_take(&table->slots);
    g_mutex_unlock(&table->lock);
    return slot;
}

void sp_pool_release_slot(struct sp_pool *pool, int slot)
{
    struct sp_table *table = pool->node->table;
    g_mutex_lock(&table->lock);
    if (slot >= 0)
        sp_slots_release(&table->slots, (unsigned)slot);
    g_mutex_unlock(&table->lock);
}

static bool take_slot(struct sp_pool_member *member, GError **error)
{
    member->slot = sp_pool_take_slot(member->pool);
    if (member->slot >= 0)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the node has too many sandboxes for pools");
    return false;
}

/* From here on it takes no CPU. A tier without HOLD and pause just idles. */
static bool stand_still(struct sp_pool_member *member, GError **error)
{
    const struct sp_driver_ops *ops = member->instance->driver->ops;
    if (!ops->agent_holds || !ops->pause || !ops->resume)
        return true;
    int64_t deadline = sp_time_monotonic_us() + HOLD_MS * (int64_t)1000;
    if (!sp_link_hold(member->link, 0, deadline, error))
        return false;
    sp_link_pause(member->link, true);
    member->paused = true;
    return ops->pause(member->instance, error);
}

bool sp_pool_member_wake(struct sp_pool_member *member, GError **error)
{
    if (!member->paused)
        return true;
    if (!member->instance->driver->ops->resume(member->instance, error))
        return false;
    sp_link_pause(member->link, false);
    member->paused = false;
    return true;
}

static bool wait_turn(struct sp_pool_member *member, GError **error)
{
    if (sp_pool_wait_turn(member->pool))
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the pools are being stopped");
    return false;
}

static bool make(struct sp_pool_member *member, struct sp_making *m, GError **error)
{
    if (!sp_making_template(m, error) || !take_slot(member, error))
        return false;
    m->slot = (unsigned)member->slot;
    m->slot_at = &member->slot;
    bool made = sp_making_dirs(m, error) && sp_failpoint("pool.dirs", error) &&
                sp_making_instance(m, error);
    member->instance = m->instance;
    if (!made || !sp_failpoint("pool.created", error) || !wait_turn(member, error))
        return false;
    made = sp_making_link(m, error);
    member->link = m->link;
    return made && sp_making_identity(m, error) && wait_turn(member, error) &&
           sp_making_ready(m, false, error) && sp_failpoint("pool.before_hold", error) &&
           stand_still(member, error) && sp_failpoint("pool.held", error);
}

bool sp_pool_member_make(struct sp_pool_member *member, GError **error)
{
    struct sp_making m = {
        .node = member->pool->node,
        .id = member->id,
        .name = member->name,
        .run_dir = member->run_dir,
        .spec = member->key->spec,
        .on_gone = on_gone,
        .gone_user = member,
    };
    bool fine = make(member, &m, error);
    sp_making_clear(&m);
    return fine;
}

void sp_pool_member_release(struct sp_pool_member *member)
{
    if (member->link)
        sp_link_stop(member->link, NULL);
    g_clear_pointer(&member->link, sp_link_unref);
    if (member->instance)
        member->instance->driver->ops->instance_free(member->instance);
    member->instance = NULL;
}

bool sp_pool_member_destroy(struct sp_pool_member *member)
{
    g_autoptr(GError) error = NULL;
    sp_pool_member_release(member);
    if (!sp_failpoint("pool.before_destroy", &error) ||
        !sp_destroy_run_dir(member->pool->node, member->run_dir, &error)) {
        sp_log_error("a member of a pool could not be removed, trying again", error, "member",
                     member->name, NULL);
        return false;
    }
    sp_pool_release_slot(member->pool, member->slot);
    member->slot = -1;
    return true;
}

void sp_pool_members_find(struct sp_pool *pool, GQueue *ret)
{
    g_autoptr(GDir) dir = g_dir_open(pool->root, 0, NULL);
    const char *name;
    while (dir && (name = g_dir_read_name(dir))) {
        if (!sp_id_valid(name, "pool"))
            continue;
        struct sp_pool_member *member = sp_pool_member_new(pool, NULL);
        g_strlcpy(member->name, name, sizeof(member->name));
        g_free(member->run_dir);
        member->run_dir = g_build_filename(pool->root, name, NULL);
        struct sp_record record = {0};
        if (sp_record_load(member->run_dir, &record, NULL)) {
            struct sp_table *table = pool->node->table;
            g_mutex_lock(&table->lock);
            if (sp_slots_claim(&table->slots, record.slot))
                member->slot = (int)record.slot;
            g_mutex_unlock(&table->lock);
            sp_record_clear(&record);
        }
        g_queue_push_tail(ret, member);
    }
}
