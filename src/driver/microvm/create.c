#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "disk/clone.h"
#include "driver/microvm/boot_talk.h"
#include "driver/microvm/delta.h"
#include "driver/microvm/instance.h"
#include "driver/microvm/memory.h"
#include "driver/microvm/prestart.h"
#include "driver/microvm/resources.h"
#include "driver/microvm/source.h"
#include "driver/microvm/start.h"
#include "driver/microvm/verify.h"
#include "driver/microvm/vmm.h"
#include "os/cleanup.h"
#include "os/endpoint.h"

#define MIB INT64_C(1048576)
#define QMP_TIMEOUT_MS 10000
#define AGENT_TIMEOUT_MS 15000
#define BOOT_TIMEOUT_MS 60000
/* A copy with more private memory than this shares it with the other copies, though it takes longer
 * to make than one in a VMM that was started ahead. */
#define COPY_ALONE_MAX_BYTES (16 * MIB)

/* What one create() works on. */
struct creation {
    struct sp_microvm *vm;
    const struct sp_driver_spec *spec;
    struct sp_vm_source source;
    struct sp_vm_start start;
    bool taken; /* a VMM that was started ahead */
    struct sp_verify *verify;
    struct sp_boot_talk *talk;
};

static bool open_source(struct creation *c, GError **error)
{
    return sp_vm_source_open(c->vm, c->spec, &c->source, error);
}

/* Whether a VMM on the base alone will do: the delta is written into it. */
static bool may_take(const struct creation *c)
{
    if (c->source.way == SP_WAY_IMAGE)
        return true;
    if (c->source.way != SP_WAY_DELTA)
        return false;
    const struct sp_saved_file *delta =
        sp_saved_manifest_file(&c->source.form.manifest, SP_FORM_DELTA);
    return c->spec->saved_use == SP_SAVED_WAKE || delta->data_bytes <= COPY_ALONE_MAX_BYTES;
}

/* The hashes of what is not verified otherwise, beside the start. */
static void start_verify(struct creation *c)
{
    static const char *const memory[] = {SP_FORM_DELTA, SP_FORM_DISK, NULL};
    static const char *const disk[] = {SP_FORM_DISK, NULL};
    if (c->source.way == SP_WAY_DELTA)
        c->verify = sp_verify_start(&c->source.form, memory);
    else if (c->source.way == SP_WAY_BOOT)
        c->verify = sp_verify_start(&c->source.form, disk);
}

/* Which VMM, on which RAM. */
static bool choose(struct creation *c, GError **error)
{
    c->taken = may_take(c) && sp_prestart_take(c->vm, c->spec, &c->source, &c->start);
    if (!c->taken && c->source.way == SP_WAY_DELTA && c->spec->saved_use == SP_SAVED_COPY &&
        !sp_vm_source_merge(c->vm, &c->source, error))
        return false;
    start_verify(c);
    return true;
}

/* The intent: all that destroy() needs. */
static bool record_intent(struct creation *c, GError **error)
{
    if (c->taken)
        return true;
    g_free(c->source.facts.name);
    c->source.facts.name = g_strdup(c->spec->name ? c->spec->name : c->spec->id);
    return sp_vm_start_record(&c->start, c->spec, &c->source.facts, error);
}

/* The boot image's own file; where that has just been removed, a copy of what it was. */
static bool keep_base(struct creation *c, GError **error)
{
    const char *name = c->source.facts.name;
    g_autoptr(GError) cause = NULL;
    if (!c->source.base_path ||
        sp_vm_file_link(c->vm, name, SP_VM_BASE, c->source.base_path, &cause))
        return true;
    if (c->source.way != SP_WAY_IMAGE) {
        g_propagate_error(error, g_steal_pointer(&cause));
        return false;
    }
    SP_CLEANUP(sp_close_fdp)
    int fd = sp_vm_file_open(c->vm, name, SP_VM_BASE, O_WRONLY | O_CREAT | O_EXCL, error);
    return fd >= 0 && sp_memory_copy(c->source.ram->fd, fd, NULL, error);
}

static bool keep_delta(struct creation *c, GError **error)
{
    if (c->source.way != SP_WAY_COPY)
        return true;
    const char *name = c->source.facts.name;
    g_autofree char *delta = g_build_filename(c->spec->saved_dir, SP_FORM_DELTA, NULL);
    g_autofree char *map = g_build_filename(c->spec->saved_dir, SP_FORM_MAP, NULL);
    return sp_vm_file_link(c->vm, name, SP_VM_DELTA, delta, error) &&
           sp_vm_file_link(c->vm, name, SP_VM_MAP, map, error);
}

static bool clone_disk(struct creation *c, GError **error)
{
    if (!keep_base(c, error) || !keep_delta(c, error))
        return false;
    if (!c->taken)
        return sp_vm_file_clone(c->vm, c->source.facts.name, SP_VM_DISK, c->source.disk_path,
                                error);
    SP_CLEANUP(sp_close_fdp) int from = open(c->source.disk_path, O_RDONLY | O_CLOEXEC);
    if (from >= 0)
        return sp_file_clone_into(from, c->start.rw_fd, error);
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", c->source.disk_path);
    return false;
}

static bool start_vmm(struct creation *c, GError **error)
{
    return c->taken ||
           sp_vm_start_process(c->vm, &c->source, c->spec->template_dir, &c->start, error);
}

static bool greet_vmm(struct creation *c, GError **error)
{
    return c->taken || sp_vm_start_greet(&c->start, error);
}

static bool write_delta(struct creation *c, GError **error)
{
    if (c->source.way != SP_WAY_DELTA)
        return true;
    const struct sp_form *form = &c->source.form;
    int64_t bytes = form->manifest.memory_mb * MIB;
    struct sp_guest_ram ram;
    struct sp_page_map map;
    SP_CLEANUP(sp_close_fdp) int map_fd = sp_form_open(form, SP_FORM_MAP, error);
    SP_CLEANUP(sp_close_fdp) int delta_fd = sp_form_open(form, SP_FORM_DELTA, error);
    if (map_fd < 0 || delta_fd < 0 ||
        !sp_guest_ram_find(c->start.record.pid, c->start.pidfd, bytes, &ram, error) ||
        !sp_page_map_load(&map, map_fd, bytes, error))
        return false;
    bool ok = sp_delta_apply(&map, delta_fd, &ram, error);
    sp_page_map_clear(&map);
    return ok;
}

static bool await_loaded(struct sp_qmp *qmp, GError **error)
{
    for (;;) {
        g_autoptr(json_t) data = sp_qmp_wait_event(qmp, "MIGRATION", QMP_TIMEOUT_MS, error);
        if (!data)
            return false;
        const char *status = json_string_value(json_object_get(data, "status"));
        if (status && strcmp(status, "completed") == 0)
            return true;
        if (status && strcmp(status, "failed") == 0) {
            g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "the saved state was not accepted");
            return false;
        }
    }
}

static bool load_state(struct creation *c, GError **error)
{
    if (c->source.way == SP_WAY_BOOT)
        return true;
    struct sp_qmp *qmp = c->start.qmp;
    SP_CLEANUP(sp_close_fdp) int state_fd = sp_vm_source_state(&c->source, error);
    return state_fd >= 0 &&
           sp_qmp_run(qmp, "getfd", json_pack("{s:s}", "fdname", "state"), state_fd, QMP_TIMEOUT_MS,
                      error) &&
           sp_qmp_run(qmp, "migrate-incoming", json_pack("{s:s}", "uri", "fd:state"), -1,
                      QMP_TIMEOUT_MS, error) &&
           await_loaded(qmp, error);
}

/* Before the first instruction. */
static bool end_verify(struct creation *c, GError **error)
{
    return sp_verify_end(g_steal_pointer(&c->verify), error);
}

/* The guest runs; its agent is locked and answers. */
static bool resume(struct creation *c, GError **error)
{
    bool boot = c->source.way == SP_WAY_BOOT;
    int64_t timeout_ms = boot ? BOOT_TIMEOUT_MS : AGENT_TIMEOUT_MS;
    if (!boot && !sp_qmp_run(c->start.qmp, "cont", NULL, -1, QMP_TIMEOUT_MS, error))
        return false;
    int fd = sp_endpoint_connect(c->spec->run_dir, SP_VMM_AGENT, AGENT_TIMEOUT_MS, error);
    if (fd < 0)
        return false;
    c->talk = sp_boot_talk_new(fd);
    if (!sp_boot_talk_hello(c->talk, c->spec->id, !boot, timeout_ms, error) ||
        !sp_vm_start_limit(&c->start, &c->source.facts, c->spec->shape.cpus, error))
        return false;
    c->start.record.started = true;
    return sp_record_save(c->spec->run_dir, &c->start.record, error);
}

static const struct {
    const char *name;
    bool (*run)(struct creation *c, GError **error);
    bool in_vmm; /* its log may say why it failed */
} steps[] = {
    {"boot_image", open_source, false}, {"choose", choose, false},
    {"record", record_intent, false},   {"disk_clone", clone_disk, false},
    {"qemu_start", start_vmm, true},    {"qemu_ready", greet_vmm, true},
    {"memory", write_delta, true},      {"restore", load_state, true},
    {"verify", end_verify, false},      {"resume", resume, true},
};

static bool run_steps(struct creation *c, sp_step_fn step, void *user, GError **error)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(steps); i++) {
        int64_t start_us = sp_time_monotonic_us();
        if (!steps[i].run(c, error)) {
            if (steps[i].in_vmm)
                sp_vmm_explain(c->spec->run_dir, error);
            g_prefix_error(error, "%s: ", steps[i].name);
            return false;
        }
        if (step)
            step(user, steps[i].name, sp_time_monotonic_us() - start_us);
    }
    return true;
}

struct sp_instance *sp_microvm_create(struct sp_driver *driver, const struct sp_driver_spec *spec,
                                      sp_step_fn step, void *user, GError **error)
{
    struct creation c = {.vm = (struct sp_microvm *)driver, .spec = spec};
    struct sp_instance *instance = NULL;
    sp_vm_start_init(&c.start, spec->run_dir);
    if (run_steps(&c, step, user, error)) {
        instance = sp_microvm_instance_new(c.vm, spec->run_dir, sp_steal_fd(&c.start.pidfd),
                                           sp_boot_talk_steal_fd(c.talk));
        sp_microvm_instance_keep(instance, sp_ram_ref(c.source.ram));
    } else {
        /* What this cannot remove now, the caller's own destroy() will: the record names it. */
        sp_microvm_destroy(driver, spec->run_dir, NULL);
    }
    sp_verify_end(c.verify, NULL);
    sp_boot_talk_free(c.talk);
    sp_vm_start_clear(&c.start);
    sp_vm_source_clear(&c.source);
    return instance;
}
