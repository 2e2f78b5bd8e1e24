/* Saving a VM: docs/microvm.md §9; the files that it writes: docs/saved-format.md. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "disk/clone.h"
#include "disk/volume.h"
#include "driver/microvm/resources.h"
#include "driver/microvm/save_private.h"
#include "driver/microvm/vmm.h"
#include "os/cleanup.h"

#define MIB INT64_C(1048576)
#define QMP_TIMEOUT_MS 10000
#define REMOVE_TIMEOUT_MS 1000
/* Beside the pages that are private now: those that become so until the capture, and small files.
 */
#define RESERVE_EXTRA_BYTES (16 * MIB)

static void phase_done(struct vm_saving *s, enum phase phase)
{
    int64_t now_us = sp_time_monotonic_us();
    s->phase_us[phase] = now_us - s->clock_us;
    s->clock_us = now_us;
}

int sp_vm_saving_open(const struct vm_saving *s, const char *name, int flags, GError **error)
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
    s->instance->qmp = sp_qmp_connect(s->instance->run_dir, SP_VMM_QMP, QMP_TIMEOUT_MS, error);
    return s->instance->qmp != NULL;
}

/* What is written now need not be written while the guest stands still. */
static bool sync_disk(struct vm_saving *s, GError **error)
{
    SP_CLEANUP(sp_close_fdp)
    int fd = sp_vm_file_open(s->vm, s->facts.name, SP_VM_DISK, O_RDWR, error);
    if (fd < 0)
        return false;
    if (fsync(fd) == 0)
        return true;
    sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "sync the disk");
    return false;
}

static bool stage(struct vm_saving *s, int64_t private_bytes, GError **error)
{
    bool shares = sp_volume_kind(s->vm->env->volume) == SP_VOLUME_BTRFS;
    g_autofree char *disk = sp_vm_file(s->vm, s->facts.name, SP_VM_DISK);
    struct stat st;
    if (stat(disk, &st) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "look at %s", disk);
        return false;
    }
    s->disk_data_bytes = (int64_t)st.st_blocks * 512;
    int64_t bytes =
        RESERVE_EXTRA_BYTES + private_bytes + private_bytes / 4 + (shares ? 0 : s->disk_data_bytes);
    s->staging = sp_saved_stage(s->vm->env->volume, s->spec.saved_name, bytes, error);
    return s->staging != NULL;
}

/* A new fd set each time: one that a killed worker has left would still give its old file. */
static int64_t pass_state(struct vm_saving *s, GError **error)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", s->state_fd);
    /* fd sets compare access modes: with O_RDWR they say "Permission denied". */
    SP_CLEANUP(sp_close_fdp) int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open the state");
        return -1;
    }
    g_autoptr(json_t) added =
        sp_qmp_call(s->instance->qmp, "add-fd", NULL, fd, QMP_TIMEOUT_MS, error);
    if (!added)
        return -1;
    json_t *id = json_object_get(added, "fdset-id");
    if (json_is_integer(id))
        return json_integer_value(id);
    g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "QEMU named no fd set");
    return -1;
}

static bool begin(struct vm_saving *s, GError **error)
{
    int64_t private_bytes = 0;
    s->clock_us = sp_time_monotonic_us();
    if (!load_facts(s, error))
        return false;
    phase_done(s, RECORD);
    if (s->spec.memory && !sp_vm_saving_look(s, &private_bytes, error))
        return false;
    phase_done(s, SCAN);
    if (!stage(s, private_bytes, error) ||
        (s->spec.memory && !sp_vm_saving_prepare(s, private_bytes, error)))
        return false;
    phase_done(s, RESERVE);
    if (s->spec.memory) {
        s->state_set = pass_state(s, error);
        if (s->state_set < 0 || !sp_vm_saving_copy_ahead(s, error))
            return false;
    }
    phase_done(s, COPY_AHEAD);
    if (!sync_disk(s, error))
        return false;
    phase_done(s, SYNC_DISK);
    return true;
}

struct sp_saving *sp_microvm_save_begin(struct sp_instance *instance,
                                        const struct sp_save_spec *spec, GError **error)
{
    struct vm_saving *s = g_new0(struct vm_saving, 1);
    s->instance = (struct sp_vm_instance *)instance;
    s->vm = (struct sp_microvm *)instance->driver;
    s->spec = *spec;
    s->delta_fd = s->state_fd = s->shadow_fd = -1;
    s->state_set = -1;
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
    if (s->state_set >= 0)
        sp_qmp_run(s->instance->qmp, "remove-fd",
                   json_pack("{s:I}", "fdset-id", (json_int_t)s->state_set), -1, REMOVE_TIMEOUT_MS,
                   NULL);
    s->instance->stopped = false;
    g_clear_pointer(&s->instance->qmp, sp_qmp_free);
    sp_close_fdp(&s->delta_fd);
    sp_close_fdp(&s->state_fd);
    sp_close_fdp(&s->shadow_fd);
    sp_tracker_free(s->tracker);
    sp_page_map_clear(&s->captured_pages);
    sp_saved_staging_free(s->staging);
    sp_page_map_clear(&s->map);
    sp_vm_facts_clear(&s->facts);
    sp_record_clear(&s->record);
    sp_vm_host_unref(s->host);
    g_free(s);
}

/* --- capture: the guest stands still --- */

/* Asking takes a turn of QEMU's main loop, so not when pause() has just asked. */
static bool check_paused(struct vm_saving *s, GError **error)
{
    if (s->instance->stopped)
        return true;
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
    g_autofree char *name = g_strdup_printf("/dev/fdset/%" G_GINT64_FORMAT, s->state_set);
    /* live: without it the disks would be given up for a receiver to take over. */
    return sp_qmp_run(s->instance->qmp, "xen-save-devices-state",
                      json_pack("{s:s, s:b}", "filename", name, "live", 0), -1, QMP_TIMEOUT_MS,
                      error);
}

static bool capture_memory(struct vm_saving *s, GError **error)
{
    if (!save_state(s, error))
        return false;
    phase_done(s, STATE);
    g_autoptr(GArray) runs = sp_vm_saving_rest(s, error);
    phase_done(s, PAGES);
    s->rest_pages = runs ? sp_page_runs_total(runs) : 0;
    bool ok = runs && sp_vm_saving_copy(s, runs, error);
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
