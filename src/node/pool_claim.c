/* A create takes a member. */
#include <errno.h>
#include <stdio.h>

#include "base/error.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/time.h"
#include "node/pool_private.h"

#define TRIES 2 /* then the create is an ordinary one */
/* A member that does not take its identity in this time is not worth waiting for. */
#define IDENTITY_MS 2000

/* The oldest member that looks alive; NULL when there is none. What is dead goes to the thread. */
static struct sp_pool_member *take(struct sp_pool *pool, const struct sp_sandbox_spec *spec)
{
    uint64_t stamp = sp_pool_stamp(pool);
    struct sp_pool_member *member = NULL;
    g_mutex_lock(&pool->lock);
    struct sp_pool_key *key = sp_pool_key_locked(pool, spec, false);
    while (key && !pool->stopping && !member && (member = g_queue_pop_head(&key->ready))) {
        if (!g_atomic_int_get(&member->gone) && member->stamp == stamp)
            break;
        g_queue_push_tail(&pool->doomed, member);
        member = NULL;
    }
    g_cond_broadcast(&pool->changed);
    g_mutex_unlock(&pool->lock);
    return member;
}

/* Wakes it as the sandbox that `making` names. Its directory has moved. */
static bool become(struct sp_pool_member *member, struct sp_making *making, GError **error)
{
    int64_t began = sp_time_monotonic_us();
    if (!sp_pool_member_wake(member, error))
        return false;
    sp_making_step(making, "resume", sp_time_monotonic_us() - began);
    if (!sp_failpoint("pool.resumed", error) || !sp_making_identity(making, error))
        return false;
    /* It has run a command, but as the template's user. */
    bool other_user = making->spec->user && *making->spec->user &&
                      g_strcmp0(making->spec->user, making->config.user) != 0;
    if (other_user && !sp_making_ready(making, true, error))
        return false;
    if (!sp_failpoint("pool.before_ready", error) || !sp_making_mark(making, error) ||
        !sp_failpoint("pool.ready", error))
        return false;
    if (sp_link_rehome(member->link, making->id, making->on_gone, making->gone_user))
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "it has ended");
    return false;
}

static bool claim(struct sp_pool_member *member, struct sp_making *making, GError **error)
{
    const struct sp_driver_ops *ops = member->instance->driver->ops;
    const char *hostname = making->spec->hostname ? making->spec->hostname : making->id;
    int64_t began = sp_time_monotonic_us();
    if (!sp_failpoint("pool.before_claim", error) ||
        !ops->claim(member->instance, making->id, making->run_dir, hostname, error))
        return false;
    sp_making_step(making, "claim", sp_time_monotonic_us() - began);
    if (!sp_failpoint("pool.claimed", error))
        return false;
    making->instance = member->instance;
    making->link = member->link;
    making->slot = (unsigned)member->slot;
    making->identity_ms = IDENTITY_MS;
    bool fine = become(member, making, error);
    making->identity_ms = 0;
    if (fine)
        return true;
    making->instance = NULL;
    making->link = NULL;
    return false;
}

/* Gives the directory back under the member's name, so that the sandbox can be made anew at once. A
 * claim may also have failed behind its rename. */
static void move_back(struct sp_pool_member *member, const struct sp_making *making)
{
    sp_pool_member_release(member);
    if (rename(making->run_dir, member->run_dir) < 0 && errno != ENOENT) {
        g_autoptr(GError) error = NULL;
        sp_error_set_errno(&error, SP_ERROR_INTERNAL, errno, "rename %s", making->run_dir);
        sp_log_error("a member of a pool is left in a sandbox's place", error, "sandbox",
                     making->id, NULL);
    }
}

static void count(struct sp_pool *pool, const struct sp_sandbox_spec *spec, bool hit)
{
    g_mutex_lock(&pool->lock);
    struct sp_pool_key *key = sp_pool_key_locked(pool, spec, false);
    if (key && hit)
        key->hits++;
    else if (key)
        key->misses++;
    g_mutex_unlock(&pool->lock);
}

/* True: the member is the sandbox now, and freed. False: it is doomed. */
static bool try_claim(struct sp_pool_member *member, struct sp_making *making)
{
    struct sp_pool *pool = member->pool;
    g_autoptr(GError) error = NULL;
    if (claim(member, making, &error)) {
        g_mutex_lock(&pool->lock);
        sp_pool_uncount_locked(pool, member);
        g_mutex_unlock(&pool->lock);
        return true;
    }
    sp_log_error("a member of a pool could not be claimed", error, "member", member->name,
                 "sandbox", making->id, NULL);
    move_back(member, making);
    sp_pool_doom(pool, member);
    if (making->steps)
        json_array_clear(making->steps);
    return false;
}

bool sp_pool_claim(struct sp_pool *pool, struct sp_making *making)
{
    if (pool->max == 0 || making->saved_dir || !making->driver->ops->claim)
        return false;
    bool claimed = false;
    /* A user of its own may be why it cannot run: that is found out once. */
    unsigned tries = making->spec->user && *making->spec->user ? 1 : TRIES;
    for (unsigned i = 0; i < tries && !claimed; i++) {
        struct sp_pool_member *member = take(pool, making->spec);
        if (!member)
            break;
        claimed = try_claim(member, making);
    }
    count(pool, making->spec, claimed);
    return claimed;
}
