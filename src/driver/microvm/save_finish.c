/* The end of a saving: files, hashes, manifest. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "disk/volume.h"
#include "driver/microvm/memory.h"
#include "driver/microvm/save_private.h"
#include "driver/microvm/source.h"
#include "os/cleanup.h"

#define MIB INT64_C(1048576)
/* Where the file system keeps checksums itself, hashing a large disk would only make waking slow.
 */
#define DISK_HASH_MAX_BYTES (256 * MIB)

static const char *const phase_names[N_PHASES] = {
    "record", "scan",  "reserve",     "copy_ahead", "sync_disk",
    "state",  "pages", "copy_memory", "copy_disk",
};

/* --- finish: it may run again --- */

static bool add_file(struct vm_saving *s, struct sp_saved_manifest *manifest, const char *name,
                     bool hash, GError **error)
{
    struct sp_memory_copied seen = {0};
    SP_CLEANUP(sp_close_fdp) int fd = sp_vm_saving_open(s, name, O_RDWR, error);
    struct stat st;
    if (fd < 0)
        return false;
    if (fstat(fd, &st) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "look at %s", name);
        return false;
    }
    /* The write to the disk begins now and goes on beside the hashing. */
    if (s->spec.durable)
        sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    if (hash && !sp_memory_copy(fd, -1, &seen, error))
        return false;
    sp_saved_manifest_add(manifest, name, st.st_size,
                          hash ? seen.data_bytes : (int64_t)st.st_blocks * 512, seen.sha256);
    return true;
}

/* The delta file from the shadow. */
struct writing {
    struct vm_saving *s;
    GError *error;
    bool ok;
};

static void *write_delta(void *user)
{
    struct writing *w = user;
    struct vm_saving *s = w->s;
    w->ok = sp_delta_apply_to_file(&s->captured_pages, s->shadow_fd, s->delta_fd,
                                   s->facts.has_delta, &w->error);
    if (w->ok && s->spec.durable)
        sync_file_range(s->delta_fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    return NULL;
}

/* Writes it while the shadow is hashed. */
static bool add_delta_from_shadow(struct vm_saving *s, struct sp_saved_manifest *manifest,
                                  GError **error)
{
    struct writing writing = {.s = s};
    struct sp_memory_copied seen;
    GThread *thread = g_thread_new("delta", write_delta, &writing);
    bool ok = s->facts.has_delta || sp_delta_digest(&s->captured_pages, s->shadow_fd, &seen, error);
    g_thread_join(thread);
    if (!writing.ok) {
        g_clear_error(error);
        g_propagate_error(error, writing.error);
        return false;
    }
    /* Over an older delta: what both are together is only in the file. */
    if (ok && s->facts.has_delta)
        return add_file(s, manifest, SP_FORM_DELTA, true, error);
    if (ok)
        sp_saved_manifest_add(manifest, SP_FORM_DELTA, seen.size_bytes, seen.data_bytes,
                              seen.sha256);
    return ok;
}

/* What QEMU wrote; not more than a wake would read. */
static bool write_state(struct vm_saving *s, GError **error)
{
    struct stat st;
    if (fstat(s->state_fd, &st) < 0 || st.st_size == 0 || st.st_size > SP_FORM_STATE_MAX_BYTES) {
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "QEMU wrote no state");
        return false;
    }
    SP_CLEANUP(sp_close_fdp)
    int fd = sp_vm_saving_open(s, SP_FORM_STATE, O_RDWR | O_CREAT | O_EXCL, error);
    return fd >= 0 && sp_memory_copy(s->state_fd, fd, NULL, error);
}

static bool add_memory(struct vm_saving *s, struct sp_saved_manifest *manifest, GError **error)
{
    sp_page_map_add_all(&s->map, &s->captured_pages);
    SP_CLEANUP(sp_close_fdp)
    int map_fd = sp_vm_saving_open(s, SP_FORM_MAP, O_RDWR | O_CREAT | O_EXCL, error);
    bool ok = map_fd >= 0 && sp_page_map_store(&s->map, map_fd, error) && write_state(s, error) &&
              (s->shadow_fd >= 0 ? add_delta_from_shadow(s, manifest, error)
                                 : add_file(s, manifest, SP_FORM_DELTA, true, error)) &&
              add_file(s, manifest, SP_FORM_MAP, true, error) &&
              add_file(s, manifest, SP_FORM_STATE, true, error);
    if (ok && *s->facts.base_sha256)
        sp_saved_manifest_add(manifest, SP_FORM_BASE, s->facts.shape.memory_mb * MIB,
                              s->facts.base_data_bytes, s->facts.base_sha256);
    return ok;
}

/* Copies of this form find its RAM made. */
static void offer(struct vm_saving *s, const struct sp_saved_manifest *manifest)
{
    if (!s->whole)
        return;
    g_autofree char *dir = sp_saved_path(s->vm->env->volume, s->spec.saved_name);
    sp_vm_source_offer(s->vm, manifest, dir, sp_steal_fd(&s->shadow_fd));
}

/* The disk is read beside the memory. */
struct hashing {
    struct vm_saving *s;
    struct sp_saved_manifest list;
    bool hash, ok;
    GError *error;
};

static void *hash_disk(void *user)
{
    struct hashing *h = user;
    h->ok = add_file(h->s, &h->list, SP_FORM_DISK, h->hash, &h->error);
    return NULL;
}

static bool add_files(struct vm_saving *s, struct sp_saved_manifest *manifest, GError **error)
{
    struct hashing h = {
        .s = s,
        .hash = sp_volume_kind(s->vm->env->volume) != SP_VOLUME_BTRFS ||
                s->disk_data_bytes <= DISK_HASH_MAX_BYTES,
    };
    GThread *thread = g_thread_new("disk", hash_disk, &h);
    bool ok = !s->spec.memory || add_memory(s, manifest, error);
    g_thread_join(thread);
    if (ok && !h.ok)
        g_propagate_error(error, g_steal_pointer(&h.error));
    ok = ok && h.ok;
    if (ok) {
        const struct sp_saved_file *disk = sp_saved_manifest_file(&h.list, SP_FORM_DISK);
        sp_saved_manifest_add(manifest, SP_FORM_DISK, disk->size_bytes, disk->data_bytes,
                              disk->sha256);
    }
    g_clear_error(&h.error);
    sp_saved_manifest_clear(&h.list);
    return ok;
}

static struct sp_saved_manifest describe(struct vm_saving *s)
{
    return (struct sp_saved_manifest){
        .sandbox_id = g_strdup(s->record.id),
        .tier = g_strdup("microvm"),
        .template_digest = g_strdup(s->record.template_digest),
        .memory = s->spec.memory,
        .durable = s->spec.durable,
        .cpus = s->facts.shape.cpus,
        .memory_mb = s->facts.shape.memory_mb,
        .disk_mb = s->facts.shape.disk_mb,
        .pids = s->facts.shape.pids,
        .slot = s->record.slot,
        .machine = sp_form_machine_json(s->host, sp_qmp_version(s->instance->qmp), &s->facts),
    };
}

bool sp_microvm_save_finish(struct sp_saving *saving, struct sp_saved_result *ret, sp_step_fn step,
                            void *user, GError **error)
{
    struct vm_saving *s = (struct vm_saving *)saving;
    if (!s->captured) {
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "save: nothing was captured");
        return false;
    }
    /* From here on the guest need not pay for it. */
    g_clear_pointer(&s->tracker, sp_tracker_free);
    struct sp_saved_manifest manifest = describe(s);
    int64_t start_us = sp_time_monotonic_us();
    bool ok = add_files(s, &manifest, error);
    int64_t hashed_us = sp_time_monotonic_us();
    ok = ok && sp_saved_commit(s->staging, &manifest, error);
    int64_t committed_us = sp_time_monotonic_us();
    if (ok)
        offer(s, &manifest);
    sp_saved_manifest_clear(&manifest);
    if (!ok) {
        g_prefix_error(error, "save: ");
        return false;
    }
    ret->size_bytes =
        s->spec.memory ? (int64_t)(sp_page_map_count(&s->captured_pages) * SP_PAGE_BYTES) : 0;
    for (unsigned i = 0; step && i < N_PHASES; i++)
        step(user, phase_names[i], s->phase_us[i]);
    if (step) {
        step(user, "hash", hashed_us - start_us);
        step(user, s->spec.durable ? "sync" : "publish", committed_us - hashed_us);
    }
    return true;
}
