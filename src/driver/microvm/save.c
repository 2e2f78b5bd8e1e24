/* Saving a VM: docs/microvm.md §9; the files that it writes: docs/saved-format.md. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "disk/clone.h"
#include "disk/volume.h"
#include "driver/microvm/delta.h"
#include "driver/microvm/form.h"
#include "driver/microvm/instance.h"
#include "driver/microvm/memory.h"
#include "driver/microvm/resources.h"
#include "driver/microvm/vmm.h"
#include "os/cleanup.h"

#define MIB INT64_C(1048576)
#define QMP_TIMEOUT_MS 10000
#define STATE_FDSET 9
/* Beside the pages that are private now: those that become so until the capture, and small files. */
#define RESERVE_EXTRA_BYTES (16 * MIB)
/* Where the file system keeps checksums itself, hashing a large disk would only make waking slow. */
#define DISK_HASH_MAX_BYTES (256 * MIB)

enum phase { RECORD, SCAN, SYNC_DISK, RESERVE, STATE, PAGES, COPY_MEMORY, COPY_DISK, N_PHASES };
static const char *const phase_names[N_PHASES] = {
    "record", "scan", "sync_disk", "reserve", "state", "pages", "copy_memory", "copy_disk",
};

struct vm_saving {
    struct sp_vm_instance *instance; /* borrowed */
    struct sp_microvm *vm;
    struct sp_save_spec spec;
    struct sp_record record;
    struct sp_vm_facts facts;
    struct sp_vm_host *host;
    struct sp_saved_staging *staging;
    struct sp_guest_ram ram;
    struct sp_page_map map;
    int delta_fd, state_fd;
    int64_t delta_bytes; /* written by the capture */
    int64_t disk_data_bytes;
    bool captured;
    int64_t phase_us[N_PHASES];
    int64_t clock_us;
};

static void phase_done(struct vm_saving *s, enum phase phase)
{
    int64_t now_us = sp_time_monotonic_us();
    s->phase_us[phase] = now_us - s->clock_us;
    s->clock_us = now_us;
}

static int open_staged(struct vm_saving *s, const char *name, int flags, GError **error)
{
    g_autofree char *path = g_build_filename(sp_saved_staging_dir(s->staging), name, NULL);
    int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", path);
    return fd;
}

/* --- begin: the guest runs --- */

static bool load_facts(struct vm_saving *s, GError **error)
{
    if (!sp_record_load(s->instance->run_dir, &s->record, error))
        return false;
    sp_vm_facts_load(&s->record, &s->facts);
    if (s->facts.shape.memory_mb <= 0 || s->facts.shape.disk_mb <= 0) {
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                    "the VM was made by an older version, which could not save");
        return false;
    }
    s->host = sp_microvm_host(s->vm, error);
    if (!s->host)
        return false;
    s->instance->qmp =
        sp_qmp_connect(s->instance->run_dir, SP_VMM_QMP, QMP_TIMEOUT_MS, error);
    return s->instance->qmp != NULL;
}

static bool scan(struct vm_saving *s, GArray **ret_runs, GError **error)
{
    GArray *runs = g_array_new(FALSE, FALSE, sizeof(struct sp_page_run));
    if (sp_guest_ram_private(&s->ram, runs, error)) {
        *ret_runs = runs;
        return true;
    }
    g_array_unref(runs);
    return false;
}

static bool look_at_memory(struct vm_saving *s, int64_t *ret_private_bytes, GError **error)
{
    *ret_private_bytes = 0;
    if (!s->spec.memory)
        return true;
    g_autoptr(GArray) runs = NULL;
    if (!sp_guest_ram_find(s->record.pid, s->instance->pidfd, s->facts.shape.memory_mb * MIB,
                           &s->ram, error) ||
        !scan(s, &runs, error))
        return false;
    *ret_private_bytes = (int64_t)sp_page_runs_total(runs) * SP_PAGE_BYTES;
    return true;
}

/* What is written now need not be written while the guest stands still. */
static bool sync_disk(struct vm_saving *s, GError **error)
{
    struct stat st;
    SP_CLEANUP(sp_close_fdp)
    int fd = sp_vm_file_open(s->vm, s->facts.name, SP_VM_DISK, O_RDWR, error);
    if (fd < 0)
        return false;
    if (fsync(fd) < 0 || fstat(fd, &st) < 0) {
        sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "sync the disk");
        return false;
    }
    s->disk_data_bytes = (int64_t)st.st_blocks * 512;
    return true;
}

static bool stage(struct vm_saving *s, int64_t private_bytes, GError **error)
{
    bool shares = sp_volume_kind(s->vm->env->volume) == SP_VOLUME_BTRFS;
    int64_t bytes = RESERVE_EXTRA_BYTES + private_bytes + private_bytes / 4 +
                    (shares ? 0 : s->disk_data_bytes);
    s->staging = sp_saved_stage(s->vm->env->volume, s->spec.saved_name, bytes, error);
    return s->staging != NULL;
}

/* The delta of a copy begins as the one that it was made from. */
static bool prepare_delta(struct vm_saving *s, GError **error)
{
    int64_t bytes = s->facts.shape.memory_mb * MIB;
    if (s->facts.has_delta) {
        g_autofree char *from = sp_vm_file(s->vm, s->facts.name, SP_VM_DELTA);
        g_autofree char *to =
            g_build_filename(sp_saved_staging_dir(s->staging), SP_FORM_DELTA, NULL);
        SP_CLEANUP(sp_close_fdp)
        int map_fd = sp_vm_file_open(s->vm, s->facts.name, SP_VM_MAP, O_RDONLY, error);
        if (map_fd < 0 || !sp_page_map_load(&s->map, map_fd, bytes, error) ||
            !sp_file_clone(from, to, 0600, NULL, error))
            return false;
        s->delta_fd = open_staged(s, SP_FORM_DELTA, O_RDWR, error);
        return s->delta_fd >= 0;
    }
    sp_page_map_init(&s->map, bytes);
    s->delta_fd = open_staged(s, SP_FORM_DELTA, O_RDWR | O_CREAT | O_EXCL, error);
    if (s->delta_fd < 0)
        return false;
    if (ftruncate(s->delta_fd, bytes) == 0)
        return true;
    sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "size of the delta");
    return false;
}

static bool prepare_memory(struct vm_saving *s, GError **error)
{
    if (!s->spec.memory)
        return true;
    if (*s->facts.base_sha256) {
        g_autofree char *from = sp_vm_file(s->vm, s->facts.name, SP_VM_BASE);
        g_autofree char *to =
            g_build_filename(sp_saved_staging_dir(s->staging), SP_FORM_BASE, NULL);
        if (link(from, to) < 0) {
            sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "link %s", from);
            return false;
        }
    }
    /* QEMU's fd sets compare access modes: with O_RDWR they say "Permission denied". */
    s->state_fd = open_staged(s, SP_FORM_STATE, O_WRONLY | O_CREAT | O_EXCL, error);
    return s->state_fd >= 0 && prepare_delta(s, error);
}

static bool begin(struct vm_saving *s, GError **error)
{
    int64_t private_bytes;
    s->clock_us = sp_time_monotonic_us();
    if (!load_facts(s, error))
        return false;
    phase_done(s, RECORD);
    if (!look_at_memory(s, &private_bytes, error))
        return false;
    phase_done(s, SCAN);
    if (!sync_disk(s, error))
        return false;
    phase_done(s, SYNC_DISK);
    if (!stage(s, private_bytes, error) || !prepare_memory(s, error))
        return false;
    phase_done(s, RESERVE);
    return true;
}

struct sp_saving *sp_microvm_save_begin(struct sp_instance *instance,
                                        const struct sp_save_spec *spec, GError **error)
{
    struct vm_saving *s = g_new0(struct vm_saving, 1);
    s->instance = (struct sp_vm_instance *)instance;
    s->vm = (struct sp_microvm *)instance->driver;
    s->spec = *spec;
    s->delta_fd = s->state_fd = -1;
    if (begin(s, error))
        return (struct sp_saving *)s;
    g_prefix_error(error, "save: ");
    sp_microvm_save_free((struct sp_saving *)s);
    return NULL;
}

void sp_microvm_save_free(struct sp_saving *saving)
{
    struct vm_saving *s = (struct vm_saving *)saving;
    if (!s)
        return;
    g_clear_pointer(&s->instance->qmp, sp_qmp_free);
    sp_close_fdp(&s->delta_fd);
    sp_close_fdp(&s->state_fd);
    sp_saved_staging_free(s->staging);
    sp_page_map_clear(&s->map);
    sp_vm_facts_clear(&s->facts);
    sp_record_clear(&s->record);
    sp_vm_host_unref(s->host);
    g_free(s);
}

/* --- capture: the guest stands still --- */

static bool check_paused(struct vm_saving *s, GError **error)
{
    g_autofree char *status = sp_microvm_status(s->instance->qmp, error);
    if (!status)
        return false;
    if (strcmp(status, "paused") == 0)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION, "the VM's state is %s, not paused",
                status);
    return false;
}

static bool save_state(struct vm_saving *s, GError **error)
{
    struct sp_qmp *qmp = s->instance->qmp;
    return sp_qmp_run(qmp, "add-fd", json_pack("{s:i}", "fdset-id", STATE_FDSET), s->state_fd,
                      QMP_TIMEOUT_MS, error) &&
           /* live: without it the disks would be given up for a receiver to take over. */
           sp_qmp_run(qmp, "xen-save-devices-state",
                      json_pack("{s:s, s:b}", "filename", "/dev/fdset/" G_STRINGIFY(STATE_FDSET),
                                "live", 0),
                      -1, QMP_TIMEOUT_MS, error) &&
           sp_qmp_run(qmp, "remove-fd", json_pack("{s:i}", "fdset-id", STATE_FDSET), -1,
                      QMP_TIMEOUT_MS, error);
}

static bool capture_memory(struct vm_saving *s, GError **error)
{
    g_autoptr(GArray) runs = NULL;
    if (!save_state(s, error))
        return false;
    phase_done(s, STATE);
    if (!scan(s, &runs, error))
        return false;
    phase_done(s, PAGES);
    bool ok = sp_delta_capture(&s->ram, runs, s->delta_fd, s->facts.has_delta, &s->map,
                               &s->delta_bytes, error);
    phase_done(s, COPY_MEMORY);
    return ok;
}

bool sp_microvm_save_capture(struct sp_saving *saving, GError **error)
{
    struct vm_saving *s = (struct vm_saving *)saving;
    s->clock_us = sp_time_monotonic_us();
    g_autofree char *from = sp_vm_file(s->vm, s->facts.name, SP_VM_DISK);
    g_autofree char *to = g_build_filename(sp_saved_staging_dir(s->staging), SP_FORM_DISK, NULL);
    s->captured = check_paused(s, error) && (!s->spec.memory || capture_memory(s, error)) &&
                  sp_file_clone(from, to, 0600, NULL, error);
    phase_done(s, COPY_DISK);
    if (!s->captured)
        g_prefix_error(error, "save: ");
    return s->captured;
}

/* --- finish: it may run again --- */

static bool add_file(struct vm_saving *s, struct sp_saved_manifest *manifest, const char *name,
                     bool hash, GError **error)
{
    struct sp_memory_copied seen = {0};
    SP_CLEANUP(sp_close_fdp) int fd = open_staged(s, name, O_RDWR, error);
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

static bool add_memory(struct vm_saving *s, struct sp_saved_manifest *manifest, GError **error)
{
    SP_CLEANUP(sp_close_fdp)
    int map_fd = open_staged(s, SP_FORM_MAP, O_RDWR | O_CREAT | O_EXCL, error);
    if (map_fd < 0 || !sp_page_map_store(&s->map, map_fd, error) ||
        !add_file(s, manifest, SP_FORM_DELTA, true, error) ||
        !add_file(s, manifest, SP_FORM_MAP, true, error) ||
        !add_file(s, manifest, SP_FORM_STATE, true, error))
        return false;
    if (*s->facts.base_sha256)
        sp_saved_manifest_add(manifest, SP_FORM_BASE, s->facts.shape.memory_mb * MIB,
                              s->facts.base_data_bytes, s->facts.base_sha256);
    return true;
}

static bool add_files(struct vm_saving *s, struct sp_saved_manifest *manifest, GError **error)
{
    bool hash_disk = sp_volume_kind(s->vm->env->volume) != SP_VOLUME_BTRFS ||
                     s->disk_data_bytes <= DISK_HASH_MAX_BYTES;
    return (!s->spec.memory || add_memory(s, manifest, error)) &&
           add_file(s, manifest, SP_FORM_DISK, hash_disk, error);
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
        .machine =
            sp_form_machine_json(s->host, sp_qmp_version(s->instance->qmp), &s->facts),
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
    struct sp_saved_manifest manifest = describe(s);
    int64_t start_us = sp_time_monotonic_us();
    bool ok = add_files(s, &manifest, error);
    int64_t hashed_us = sp_time_monotonic_us();
    ok = ok && sp_saved_commit(s->staging, &manifest, error);
    int64_t committed_us = sp_time_monotonic_us();
    sp_saved_manifest_clear(&manifest);
    if (!ok) {
        g_prefix_error(error, "save: ");
        return false;
    }
    ret->size_bytes = s->delta_bytes + (s->spec.memory ? (int64_t)sp_page_map_bytes(&s->map) : 0);
    for (unsigned i = 0; step && i < N_PHASES; i++)
        step(user, phase_names[i], s->phase_us[i]);
    if (step) {
        step(user, "hash", hashed_us - start_us);
        step(user, s->spec.durable ? "sync" : "publish", committed_us - hashed_us);
    }
    return true;
}
