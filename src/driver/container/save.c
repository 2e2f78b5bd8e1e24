/* Saving a container: its layer, and with CRIU its memory. The form holds `layer`, whose ids are
 * those of inside, and with memory the folder `criu`. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/time.h"
#include "disk/layer.h"
#include "disk/saved.h"
#include "driver/container/container.h"
#include "driver/container/criu.h"

/* A suspend soon after a worker's start waits for the trial of CRIU. */
#define TRIAL_WAIT_MS 15000

struct sp_saving {
    struct sp_container *container; /* borrowed */
    struct sp_volume *volume;       /* borrowed */
    char *saved_name, *layer;
    char *criu; /* the program; NULL: the disk only */
    bool durable;
    struct sp_saved_staging *staging;
    bool captured;
    int64_t layer_bytes, memory_bytes, begin_us, dump_us, capture_us;
};

/* What a copy will need, and the memory in use; a snapshot needs next to nothing. */
static int64_t bytes_to_reserve(const struct sp_saving *saving)
{
    int64_t bytes = sp_layer_is_mapped(saving->volume)
                        ? 0
                        : sp_container_shape(&saving->container->record).disk_mb << 20;
    if (!saving->criu)
        return bytes;
    SP_CLEANUP(sp_cgroup_free_p)
    struct sp_cgroup *cgroup = sp_container_cgroup(saving->container, NULL);
    struct sp_cgroup_usage usage = {0};
    if (cgroup)
        sp_cgroup_usage(cgroup, &usage, NULL);
    return bytes + usage.memory_bytes;
}

/* The ids of its slot are in the memory's image. */
static void refuse_copies(GError **error)
{
    g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED,
                "the container tier cannot make copies of a running memory: use memory: false, "
                "or the microvm tier");
}

bool sp_container_can_save_memory(struct sp_driver *driver, char **ret_reason)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *criu = sp_criu_trial_result((struct sp_container_driver *)driver, 0, &error);
    if (!criu && ret_reason)
        *ret_reason = g_strdup(error->message);
    return criu != NULL;
}

struct sp_saving *sp_container_save_begin(struct sp_instance *instance,
                                          const struct sp_save_spec *spec, GError **error)
{
    struct sp_container *container = (struct sp_container *)instance;
    struct sp_container_driver *driver = (struct sp_container_driver *)instance->driver;
    g_autofree char *criu = NULL;
    if (spec->memory && !spec->durable) { /* a fork's own form, of which only copies are made */
        refuse_copies(error);
        return NULL;
    }
    if (spec->memory) {
        criu = sp_criu_trial_result(driver, TRIAL_WAIT_MS, error);
        if (!criu)
            return NULL;
    }
    int64_t start = sp_time_monotonic_us();
    struct sp_saving *saving = g_new0(struct sp_saving, 1);
    saving->container = container;
    saving->volume = driver->env.volume;
    saving->saved_name = g_strdup(spec->saved_name);
    saving->layer = sp_container_layer_name(&container->record);
    saving->criu = g_steal_pointer(&criu);
    saving->durable = spec->durable;
    /* Most of what is to be written back is so while the sandbox still runs. */
    bool ok = sp_layer_sync(saving->volume, saving->layer, error);
    if (ok)
        saving->staging =
            sp_saved_stage(saving->volume, saving->saved_name, bytes_to_reserve(saving), error);
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
    return sp_layer_save(saving->volume, saving->layer, SP_SLOT_UID(saving->container->record.slot),
                         fd, SP_CONTAINER_SAVED_LAYER, &saving->layer_bytes, error);
}

/* What files of a folder add up to. */
static int64_t folder_bytes(const char *folder)
{
    int64_t bytes = 0;
    g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
    for (const char *name; dir && (name = g_dir_read_name(dir));) {
        g_autofree char *path = g_build_filename(folder, name, NULL);
        struct stat st;
        if (lstat(path, &st) == 0)
            bytes += st.st_blocks * 512;
    }
    return bytes;
}

static bool save_memory(struct sp_saving *saving, GError **error)
{
    g_autofree char *folder =
        g_build_filename(sp_saved_staging_dir(saving->staging), SP_CRIU_FOLDER, NULL);
    if (!sp_criu_dump(saving->container, saving->criu, folder, error))
        return false;
    saving->memory_bytes = folder_bytes(folder);
    return true;
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
    bool ok = !saving->criu || save_memory(saving, error);
    saving->dump_us = sp_time_monotonic_us() - start;
    /* The memory first: it is what may be refused, and it changes nothing on the disk. */
    saving->captured = ok && save_layer(saving, error);
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
        .memory = saving->criu != NULL,
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
        if (saving->criu)
            step(user, "memory", saving->dump_us);
        step(user, "layer", saving->capture_us - saving->dump_us);
        step(user, "commit", sp_time_monotonic_us() - start);
    }
    *ret = (struct sp_saved_result){.size_bytes = saving->layer_bytes + saving->memory_bytes};
    return true;
}

void sp_container_save_free(struct sp_saving *saving)
{
    if (!saving)
        return;
    sp_saved_staging_free(saving->staging);
    g_free(saving->saved_name);
    g_free(saving->layer);
    g_free(saving->criu);
    g_free(saving);
}

bool sp_container_check_form(struct sp_driver *driver, const struct sp_saved_manifest *manifest,
                             enum sp_saved_use use, unsigned slot, GError **error)
{
    if (!g_str_equal(manifest->tier, SP_CONTAINER_TIER)) {
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                    "the saved form is of the tier %s", manifest->tier);
        return false;
    }
    if (!manifest->memory)
        return true;
    if (use == SP_SAVED_COPY) {
        refuse_copies(error);
        return false;
    }
    if (manifest->slot != slot) {
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                    "the memory was saved in slot %u and cannot go on in slot %u", manifest->slot,
                    slot);
        return false;
    }
    g_autofree char *criu =
        sp_criu_trial_result((struct sp_container_driver *)driver, TRIAL_WAIT_MS, error);
    if (!criu)
        g_prefix_error(error, "the form holds memory: ");
    return criu != NULL;
}

bool sp_container_check_saved(struct sp_driver *driver, const char *saved_dir, GError **error)
{
    struct sp_saved_manifest manifest;
    if (!sp_saved_load(saved_dir, &manifest, error))
        return false;
    bool ok = sp_container_check_form(driver, &manifest, SP_SAVED_WAKE, manifest.slot, error);
    sp_saved_manifest_clear(&manifest);
    return ok;
}
