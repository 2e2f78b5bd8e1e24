#include "node/drivers.h"

#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/time.h"

#define MAX_TIERS 4u

struct tier {
    struct sp_drivers *drivers;
    char *name;
    struct sp_driver *driver; /* NULL: it could not be made */
    struct sp_tier_status status;
    bool probed;
    GThread *thread;
};

struct sp_drivers {
    GMutex lock; /* a leaf: nothing is called under it */
    GCond changed;
    struct tier tiers[MAX_TIERS];
    unsigned n_tiers;
    void (*done)(void *user);
    void *user;
};

struct sp_drivers *sp_drivers_new(void)
{
    struct sp_drivers *drivers = g_new0(struct sp_drivers, 1);
    g_mutex_init(&drivers->lock);
    g_cond_init(&drivers->changed);
    return drivers;
}

static struct tier *add(struct sp_drivers *drivers, const char *name)
{
    g_assert(drivers->n_tiers < MAX_TIERS);
    struct tier *tier = &drivers->tiers[drivers->n_tiers++];
    tier->drivers = drivers;
    tier->name = g_strdup(name);
    return tier;
}

void sp_drivers_add(struct sp_drivers *drivers, struct sp_driver *driver)
{
    add(drivers, driver->ops->tier)->driver = driver;
}

void sp_drivers_add_broken(struct sp_drivers *drivers, const char *name, const char *reason)
{
    struct tier *tier = add(drivers, name);
    tier->status.detail = g_strdup(reason);
    tier->probed = true;
}

static void *probe_thread(void *data)
{
    struct tier *tier = data;
    struct sp_tier_status status = {0};
    tier->driver->ops->probe(tier->driver, &status);
    g_mutex_lock(&tier->drivers->lock);
    tier->status = status;
    tier->probed = true;
    g_cond_broadcast(&tier->drivers->changed);
    g_mutex_unlock(&tier->drivers->lock);
    if (tier->drivers->done)
        tier->drivers->done(tier->drivers->user);
    return NULL;
}

void sp_drivers_probe(struct sp_drivers *drivers, void (*done)(void *user), void *user)
{
    drivers->done = done;
    drivers->user = user;
    for (unsigned i = 0; i < drivers->n_tiers; i++) {
        struct tier *tier = &drivers->tiers[i];
        if (tier->driver)
            tier->thread = g_thread_new("probe", probe_thread, tier);
    }
}

static bool all_probed(const struct sp_drivers *drivers)
{
    for (unsigned i = 0; i < drivers->n_tiers; i++) {
        if (!drivers->tiers[i].probed)
            return false;
    }
    return true;
}

bool sp_drivers_wait_probed(struct sp_drivers *drivers, int64_t timeout_ms)
{
    int64_t deadline = sp_time_monotonic_us() + timeout_ms * 1000;
    g_mutex_lock(&drivers->lock);
    while (!all_probed(drivers) && g_cond_wait_until(&drivers->changed, &drivers->lock, deadline)) {
    }
    bool done = all_probed(drivers);
    g_mutex_unlock(&drivers->lock);
    return done;
}

void sp_drivers_free(struct sp_drivers *drivers)
{
    for (unsigned i = 0; i < drivers->n_tiers; i++) {
        struct tier *tier = &drivers->tiers[i];
        if (tier->thread)
            g_thread_join(tier->thread);
        if (tier->driver)
            tier->driver->ops->driver_free(tier->driver);
        g_free(tier->name);
        g_free(tier->status.detail);
    }
    g_mutex_clear(&drivers->lock);
    g_cond_clear(&drivers->changed);
    g_free(drivers);
}

static struct tier *find(struct sp_drivers *drivers, const char *name)
{
    for (unsigned i = 0; name && i < drivers->n_tiers; i++) {
        if (strcmp(drivers->tiers[i].name, name) == 0)
            return &drivers->tiers[i];
    }
    return NULL;
}

struct sp_driver *sp_drivers_find(struct sp_drivers *drivers, const char *name)
{
    struct tier *tier = find(drivers, name); /* the table does not change after the start */
    return tier ? tier->driver : NULL;
}

struct sp_driver *sp_drivers_get(struct sp_drivers *drivers, const char *name, GError **error)
{
    struct tier *tier = find(drivers, name);
    if (!tier) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "this node has no tier \"%s\"",
                    name ? name : "");
        return NULL;
    }
    int64_t deadline = sp_time_monotonic_us() + 25 * G_USEC_PER_SEC;
    g_mutex_lock(&drivers->lock);
    while (!tier->probed && g_cond_wait_until(&drivers->changed, &drivers->lock, deadline)) {
    }
    bool available = tier->driver && tier->status.available;
    if (!available)
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "the %s tier does not work here: %s",
                    name, tier->status.detail ? tier->status.detail : "it is still being tried");
    g_mutex_unlock(&drivers->lock);
    return available ? tier->driver : NULL;
}

/* Whether suspend can keep memory there. Drivers have found that out before, or say "not yet". */
static void add_save_memory(struct sp_driver *driver, json_t *item)
{
    g_autofree char *reason = NULL;
    const struct sp_driver_ops *ops = driver->ops;
    bool can = ops->save_begin && (!ops->can_save_memory || ops->can_save_memory(driver, &reason));
    json_object_set_new(item, "save_memory", json_boolean(can));
    if (!can)
        json_object_set_new(item, "save_memory_detail",
                            sp_json_text(reason ? reason : "this tier cannot save memory"));
}

json_t *sp_drivers_to_json(struct sp_drivers *drivers)
{
    json_t *list = json_array();
    struct sp_driver *add_save_memory_to[MAX_TIERS] = {NULL}; /* asked without the lock */
    g_mutex_lock(&drivers->lock);
    for (unsigned i = 0; i < drivers->n_tiers; i++) {
        const struct tier *tier = &drivers->tiers[i];
        json_t *item = json_object();
        json_object_set_new(item, "tier", json_string(tier->name));
        json_object_set_new(item, "available", json_boolean(tier->status.available));
        json_object_set_new(item, "detail",
                            sp_json_text(tier->probed ? tier->status.detail : "being tried"));
        if (!tier->probed)
            json_object_set_new(item, "probing", json_true());
        json_array_append_new(list, item);
        if (tier->probed && tier->status.available && tier->driver)
            add_save_memory_to[i] = tier->driver;
    }
    g_mutex_unlock(&drivers->lock);
    for (unsigned i = 0; i < drivers->n_tiers; i++) {
        if (add_save_memory_to[i])
            add_save_memory(add_save_memory_to[i], json_array_get(list, i));
    }
    return list;
}
