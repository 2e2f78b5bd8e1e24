/*
 * VMMs started ahead: for creates that find no member, and for wakes. The driver keeps them and
 * gives one to the next create that fits; here it is only counted how many there are, and to whom
 * their slots belong.
 */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/time.h"
#include "node/destroy_dir.h"
#include "node/drivers.h"
#include "node/pool_private.h"

#define A_KEY 2u
#define ALL_KEYS 4u
#define RETRY_MS 30000

void sp_pool_vmm_free(struct sp_pool_vmm *vmm)
{
    sp_pool_key_unref(vmm->key);
    g_free(vmm->run_dir);
    g_free(vmm);
}

static bool start(struct sp_pool *pool, struct sp_pool_vmm *vmm, GError **error)
{
    struct sp_making m = {.node = pool->node, .spec = vmm->key->spec};
    char id[SP_ID_MAX];
    sp_id_new("sbx", id);
    bool fine = sp_making_template(&m, error);
    if (fine && mkdir(vmm->run_dir, 0700) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "mkdir %s", vmm->run_dir);
        fine = false;
    }
    struct sp_driver_spec spec = {
        .id = id,
        .name = vmm->name,
        .run_dir = vmm->run_dir,
        .template_dir = m.template_dir,
        .template_digest = vmm->key->spec->template_digest,
        .slot = (unsigned)vmm->slot,
        .hostname = vmm->key->spec->hostname,
        .shape = vmm->key->spec->shape,
    };
    fine = fine && m.driver->ops->prestart(m.driver, &spec, error);
    sp_making_clear(&m);
    return fine;
}

void sp_pool_vmm_start(struct sp_pool *pool, struct sp_pool_key *key)
{
    g_autoptr(GError) error = NULL;
    struct sp_pool_vmm *vmm = g_new0(struct sp_pool_vmm, 1);
    vmm->key = sp_pool_key_ref(key);
    sp_id_new("pool", vmm->name);
    vmm->run_dir = g_build_filename(pool->root, vmm->name, NULL);
    vmm->slot = sp_pool_take_slot(pool);
    g_mutex_lock(&pool->lock);
    vmm->stamp = pool->stamp;
    if (vmm->slot >= 0) /* before it can be taken */
        g_ptr_array_add(pool->vmms, vmm);
    g_mutex_unlock(&pool->lock);
    bool fine = vmm->slot >= 0 && start(pool, vmm, &error);
    g_mutex_lock(&pool->lock);
    pool->starting = false;
    if (!fine) {
        key->vmm_retry_ms = sp_time_monotonic_ms() + RETRY_MS;
        if (vmm->slot < 0)
            sp_pool_vmm_free(vmm);
        else
            vmm->failed = true; /* to be weeded */
    }
    g_cond_broadcast(&pool->changed);
    g_mutex_unlock(&pool->lock);
    if (error)
        sp_log_error("a VMM could not be started ahead", error, "template",
                     key->spec->template_digest, NULL);
}

static bool can_prestart(struct sp_pool *pool, const struct sp_pool_key *key)
{
    struct sp_driver *driver = sp_drivers_find(pool->node->drivers, key->spec->isolation);
    return driver && driver->ops->prestart && driver->ops->slot;
}

struct sp_pool_key *sp_pool_vmm_needed(struct sp_pool *pool)
{
    GHashTableIter iter;
    void *value;
    if (pool->starting || pool->filling > 0 || pool->vmms->len >= ALL_KEYS ||
        g_atomic_int_get(&pool->creating) > 0)
        return NULL;
    g_hash_table_iter_init(&iter, pool->keys);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        struct sp_pool_key *key = value;
        unsigned have = 0;
        for (guint i = 0; i < pool->vmms->len; i++)
            have += ((struct sp_pool_vmm *)pool->vmms->pdata[i])->key == key;
        if (key->marks.high > 0 && key->ready.length >= key->marks.low && have < A_KEY &&
            sp_time_monotonic_ms() >= key->vmm_retry_ms && can_prestart(pool, key))
            return sp_pool_key_ref(key);
    }
    return NULL;
}

/* Whether nobody can have it any more, so that its slot is to be given back, after *ret_destroy
 * what is there. A create that takes one is counted from before that until it has claimed the slot:
 * when none is under way, one that is missing was taken by a create that has failed. */
static bool is_over(struct sp_pool *pool, struct sp_pool_vmm *vmm, bool *ret_destroy)
{
    if (pool->starting)
        return false;
    *ret_destroy = access(vmm->run_dir, F_OK) == 0;
    vmm->missing = !*ret_destroy;
    if (vmm->missing)
        return g_atomic_int_get(&pool->making) == 0;
    if (vmm->failed)
        return true;
    struct sp_driver *driver = sp_drivers_find(pool->node->drivers, vmm->key->spec->isolation);
    bool unwanted = vmm->stamp != pool->stamp || vmm->key->forgotten || vmm->key->marks.high == 0;
    vmm->failed = unwanted && driver->ops->end_prestarted(driver, vmm->run_dir);
    return vmm->failed;
}

void sp_pool_vmms_weed(struct sp_pool *pool)
{
    for (guint i = pool->vmms->len; i-- > 0 && !pool->stopping;) {
        struct sp_pool_vmm *vmm = pool->vmms->pdata[i];
        bool destroy;
        if (!is_over(pool, vmm, &destroy))
            continue;
        g_ptr_array_remove_index(pool->vmms, i);
        g_mutex_unlock(&pool->lock);
        g_autoptr(GError) error = NULL;
        bool gone = !destroy || sp_destroy_run_dir(pool->node, vmm->run_dir, &error);
        if (gone)
            sp_pool_release_slot(pool, vmm->slot);
        else
            sp_log_error("a VMM that was started ahead could not be removed, trying again", error,
                         "member", vmm->name, NULL);
        g_mutex_lock(&pool->lock);
        if (gone)
            sp_pool_vmm_free(vmm);
        else
            g_ptr_array_add(pool->vmms, vmm);
        g_cond_broadcast(&pool->changed);
        i = MIN(i, pool->vmms->len); /* it may have shrunk meanwhile */
    }
}

void sp_pool_making(struct sp_pool *pool, bool begins)
{
    if (pool)
        g_atomic_int_add(&pool->making, begins ? 1 : -1);
}

void sp_pool_vmm_taken(struct sp_pool *pool, unsigned slot)
{
    if (!pool)
        return;
    g_mutex_lock(&pool->lock);
    for (guint i = 0; i < pool->vmms->len; i++) {
        struct sp_pool_vmm *vmm = pool->vmms->pdata[i];
        if (vmm->slot == (int)slot) {
            g_ptr_array_remove_index(pool->vmms, i);
            sp_pool_vmm_free(vmm);
            break;
        }
    }
    g_cond_broadcast(&pool->changed);
    g_mutex_unlock(&pool->lock);
}
