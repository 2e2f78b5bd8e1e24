/* Saving a container: its layer, and with CRIU its memory. The form holds `layer`, whose ids are those
 * of inside, and with memory the folder `criu`. */
#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/time.h"
#include "disk/layer.h"
#include "disk/saved.h"
#include "driver/container/container.h"

struct sp_saving {
    struct sp_container *container; /* borrowed */
    struct sp_volume *volume;       /* borrowed */
    char *saved_name, *layer;
    bool memory, durable;
    struct sp_saved_staging *staging;
    bool captured;
    int64_t layer_bytes, begin_us, capture_us;
};

/* What a copy will need; a snapshot needs next to nothing. */
static int64_t bytes_to_reserve(const struct sp_saving *saving)
{
    if (sp_layer_is_mapped(saving->volume))
        return 0;
    return sp_container_shape(&saving->container->record).disk_mb << 20;
}

bool sp_container_can_save_memory(struct sp_driver *driver, char **ret_reason)
{
    if (ret_reason)
        *ret_reason = g_strdup("this tier saves the disk only: use memory: false, or the microvm "
                               "tier");
    return false;
}

struct sp_saving *sp_container_save_begin(struct sp_instance *instance,
                                          const struct sp_save_spec *spec, GError **error)
{
    char *reason = NULL;
    if (spec->memory && !sp_container_can_save_memory(instance->driver, &reason)) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_UNSUPPORTED, reason);
        g_free(reason);
        return NULL;
    }
    struct sp_container *container = (struct sp_container *)instance;
    struct sp_container_driver *driver = (struct sp_container_driver *)instance->driver;
    int64_t start = sp_time_monotonic_us();
    struct sp_saving *saving = g_new0(struct sp_saving, 1);
    saving->container = container;
    saving->volume = driver->env.volume;
    saving->saved_name = g_strdup(spec->saved_name);
    saving->layer = sp_container_layer_name(&container->record);
    saving->memory = spec->memory;
    saving->durable = spec->durable;
    /* Most of what is to be written back is so while the sandbox still runs. */
    bool ok = sp_layer_sync(saving->volume, saving->layer, error);
    if (ok)
        saving->staging = sp_saved_stage(saving->volume, saving->saved_name,
                                         bytes_to_reserve(saving), error);
    saving->begin_us = sp_time_monotonic_us() - start;
    if (saving->staging)
        return saving;
    g_prefix_error(error, "save %s: ", container->record.id);
    sp_container_save_free(saving);
    return NULL;
}

static bool save_layer(struct sp_saving *saving, GError **error)
{
    const char *dir = sp_saved_staging_dir(saving->staging);
    SP_CLEANUP(sp_close_fdp) int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", dir);
        return false;
    }
    return sp_layer_save(saving->volume, saving->layer,
                         SP_SLOT_UID(saving->container->record.slot), fd, SP_CONTAINER_SAVED_LAYER,
                         &saving->layer_bytes, error);
}

bool sp_container_save_capture(struct sp_saving *saving, GError **error)
{
    int64_t start = sp_time_monotonic_us();
    SP_CLEANUP(sp_cgroup_free_p)
    struct sp_cgroup *cgroup = sp_container_cgroup(saving->container, error);
    if (!cgroup)
        return false;
    if (!sp_cgroup_is_frozen(cgroup)) {
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "save %s: it is not paused",
                    saving->container->record.id);
        return false;
    }
    saving->captured = save_layer(saving, error);
    saving->capture_us = sp_time_monotonic_us() - start;
    if (!saving->captured)
        g_prefix_error(error, "save %s: ", saving->container->record.id);
    return saving->captured;
}

static bool commit(struct sp_saving *saving, GError **error)
{
    const struct sp_record *record = &saving->container->record;
    const struct sp_shape shape = sp_container_shape(record);
    const struct sp_saved_manifest manifest = {
        .format = SP_SAVED_FORMAT,
        .sandbox_id = record->id,
        .tier = (char *)SP_CONTAINER_TIER,
        .template_digest = record->template_digest,
        .memory = saving->memory,
        .durable = saving->durable,
        .cpus = shape.cpus,
        .memory_mb = shape.memory_mb,
        .disk_mb = shape.disk_mb,
        .pids = shape.pids,
        .slot = record->slot,
    };
    return sp_saved_commit(saving->staging, &manifest, error);
}

bool sp_container_save_finish(struct sp_saving *saving, struct sp_saved_result *ret,
                              sp_step_fn step, void *user, GError **error)
{
    g_assert(saving->captured);
    int64_t start = sp_time_monotonic_us();
    if (!commit(saving, error)) {
        g_prefix_error(error, "save %s: ", saving->container->record.id);
        return false;
    }
    if (step) {
        step(user, "begin", saving->begin_us);
        step(user, "capture", saving->capture_us);
        step(user, "commit", sp_time_monotonic_us() - start);
    }
    *ret = (struct sp_saved_result){.size_bytes = saving->layer_bytes};
    return true;
}

void sp_container_save_free(struct sp_saving *saving)
{
    if (!saving)
        return;
    sp_saved_staging_free(saving->staging);
    g_free(saving->saved_name);
    g_free(saving->layer);
    g_free(saving);
}
