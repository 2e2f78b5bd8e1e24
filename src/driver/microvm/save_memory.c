/* The memory of a VM that is being saved. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "disk/clone.h"
#include "driver/microvm/memory.h"
#include "driver/microvm/resources.h"
#include "driver/microvm/save_private.h"
#include "os/cleanup.h"
#include "os/meminfo.h"

#define MIB INT64_C(1048576)
/* Copying ahead ends when this little is left, or when it does not get less. */
#define REST_PAGES 128
#define MAX_ROUNDS 6
#define COPY_AHEAD_MS 2000

static GArray *new_runs(void)
{
    return g_array_new(FALSE, FALSE, sizeof(struct sp_page_run));
}

static int64_t ram_bytes(const struct vm_saving *s)
{
    return s->facts.shape.memory_mb * MIB;
}

bool sp_vm_saving_look(struct vm_saving *s, int64_t *ret_private_bytes, GError **error)
{
    g_autoptr(GArray) runs = new_runs();
    if (!sp_guest_ram_find(s->record.pid, s->instance->pidfd, ram_bytes(s), &s->ram, error) ||
        !sp_guest_ram_private(&s->ram, runs, error))
        return false;
    *ret_private_bytes = (int64_t)sp_page_runs_total(runs) * SP_PAGE_BYTES;
    return true;
}

/* --- prepare --- */

/* The delta of a copy begins as the one that it was made from. */
static bool prepare_delta(struct vm_saving *s, GError **error)
{
    if (s->facts.has_delta) {
        g_autofree char *from = sp_vm_file(s->vm, s->facts.name, SP_VM_DELTA);
        g_autofree char *to =
            g_build_filename(sp_saved_staging_dir(s->staging), SP_FORM_DELTA, NULL);
        SP_CLEANUP(sp_close_fdp)
        int map_fd = sp_vm_file_open(s->vm, s->facts.name, SP_VM_MAP, O_RDONLY, error);
        if (map_fd < 0 || !sp_page_map_load(&s->map, map_fd, ram_bytes(s), error) ||
            !sp_file_clone(from, to, 0600, NULL, error))
            return false;
        s->delta_fd = sp_vm_saving_open(s, SP_FORM_DELTA, O_RDWR, error);
        return s->delta_fd >= 0;
    }
    sp_page_map_init(&s->map, ram_bytes(s));
    s->delta_fd = sp_vm_saving_open(s, SP_FORM_DELTA, O_RDWR | O_CREAT | O_EXCL, error);
    if (s->delta_fd < 0)
        return false;
    if (ftruncate(s->delta_fd, ram_bytes(s)) == 0)
        return true;
    sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "size of the delta");
    return false;
}

static bool link_base(struct vm_saving *s, GError **error)
{
    g_autofree char *from = sp_vm_file(s->vm, s->facts.name, SP_VM_BASE);
    g_autofree char *to = g_build_filename(sp_saved_staging_dir(s->staging), SP_FORM_BASE, NULL);
    if (link(from, to) == 0)
        return true;
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "link %s", from);
    return false;
}

/* Whether the host has the memory for a second copy of that much, also when as many savings as
 * there may be at once ask at the same time. */
static bool fits_in_memory(int64_t bytes)
{
    return bytes < sp_meminfo_available_bytes() / 8;
}

/* A form that need not be durable is that of a fork: its copies want the whole RAM in a memfd, and
 * the origin is to stand still as shortly as possible. Else the shadow only keeps the file system
 * out of the pause, for which tracking is as good: then what is copied ahead goes into the file
 * itself. */
static bool prepare_shadow(struct vm_saving *s, int64_t private_bytes, GError **error)
{
    struct sp_ram *mapped = s->spec.durable ? NULL : s->instance->ram;
    int64_t bytes = private_bytes + (mapped ? s->facts.base_data_bytes : 0);
    if ((s->tracker && s->spec.durable) || !fits_in_memory(bytes))
        return true;
    s->shadow_fd = sp_memory_new("space-vm", ram_bytes(s), error);
    if (s->shadow_fd < 0)
        return false;
    s->whole = mapped != NULL;
    return true;
}

bool sp_vm_saving_prepare(struct vm_saving *s, int64_t private_bytes, GError **error)
{
    sp_page_map_init(&s->captured_pages, ram_bytes(s));
    if (*s->facts.base_sha256 && !link_base(s, error))
        return false;
    /* QEMU writes into memory of its own, so it never has a file of the form open. */
    s->state_fd = sp_memory_new("state", 0, error);
    if (s->state_fd < 0 || !prepare_delta(s, error))
        return false;
    s->tracker = sp_tracker_open(s->instance->pidfd, &s->ram, NULL);
    return prepare_shadow(s, private_bytes, error);
}

/* --- copying --- */

bool sp_vm_saving_copy(struct vm_saving *s, const GArray *runs, GError **error)
{
    bool shadow = s->shadow_fd >= 0;
    /* Zeros have to be written where something may be: an older delta, the base, an older copy. */
    bool over = s->copied_ahead || s->facts.has_delta || s->whole;
    s->copied_ahead = true;
    return sp_delta_capture(&s->ram, runs, shadow ? s->shadow_fd : s->delta_fd, over,
                            &s->captured_pages, error);
}

static bool copy_private(struct vm_saving *s, GError **error)
{
    g_autoptr(GArray) runs = new_runs();
    return sp_guest_ram_private(&s->ram, runs, error) && sp_vm_saving_copy(s, runs, error);
}

/* The first round protects all private pages and copies them, whatever an earlier tracking has
 * left; the next ones copy what was written meanwhile. */
static bool copy_tracked(struct vm_saving *s, GError **error)
{
    int64_t deadline_ms = sp_time_monotonic_ms() + COPY_AHEAD_MS;
    for (unsigned round = 0; round < MAX_ROUNDS; round++) {
        g_autoptr(GArray) runs = new_runs();
        if (!sp_guest_ram_written(&s->ram, true, runs, error))
            return false;
        uint64_t pages = sp_page_runs_total(runs);
        bool ok = round == 0 ? copy_private(s, error) : sp_vm_saving_copy(s, runs, error);
        if (!ok)
            return false;
        if ((round > 0 && pages <= REST_PAGES) || sp_time_monotonic_ms() >= deadline_ms)
            break;
    }
    return true;
}

bool sp_vm_saving_copy_ahead(struct vm_saving *s, GError **error)
{
    if (s->whole && !sp_memory_copy(s->instance->ram->fd, s->shadow_fd, NULL, error))
        return false;
    if (s->tracker && copy_tracked(s, NULL))
        return true;
    /* Without tracking all is copied again, but over pages that are there: half the time. */
    g_clear_pointer(&s->tracker, sp_tracker_free);
    return !s->whole || copy_private(s, error);
}

GArray *sp_vm_saving_rest(struct vm_saving *s, GError **error)
{
    GArray *runs = new_runs();
    if (s->tracker && sp_guest_ram_written(&s->ram, false, runs, NULL))
        return runs;
    g_array_set_size(runs, 0);
    if (!sp_guest_ram_private(&s->ram, runs, error))
        g_clear_pointer(&runs, g_array_unref);
    return runs;
}
