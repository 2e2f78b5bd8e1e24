#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/time.h"
#include "disk/clone.h"
#include "driver/microvm/boot_store.h"
#include "driver/microvm/boot_talk.h"
#include "os/endpoint.h"
#include "driver/microvm/instance.h"
#include "driver/microvm/qmp_client.h"
#include "driver/microvm/vmm.h"
#include "driver/record.h"
#include "os/cleanup.h"

#define MIB INT64_C(1048576)
#define QMP_TIMEOUT_MS 10000
#define AGENT_TIMEOUT_MS 15000

/* What one create() works on. */
struct creation {
    struct sp_microvm *vm;
    const struct sp_driver_spec *spec;
    struct sp_boot_image *image;
    struct sp_record record;
    struct sp_cgroup *cgroup;
    struct sp_qmp *qmp;
    struct sp_boot_talk *talk;
    int root_fd, rw_fd, pidfd;
};

static bool open_image(struct creation *c, GError **error)
{
    g_autofree char *root = g_build_filename(c->spec->template_dir, "image.erofs", NULL);
    c->image = sp_boot_store_get(c->vm, c->spec->template_dir, &c->spec->shape, error);
    if (!c->image)
        return false;
    c->root_fd = open(root, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (c->root_fd >= 0)
        return true;
    sp_error_set_errno(error, SP_ERROR_NOT_FOUND, errno, "open %s", root);
    return false;
}

/* The intent: all that destroy() needs. */
static bool record_intent(struct creation *c, GError **error)
{
    c->record = (struct sp_record){
        .id = g_strdup(c->spec->id),
        .tier = g_strdup("microvm"),
        .template_digest = g_strdup(c->spec->template_digest),
        .cgroup = g_strdup(c->spec->id),
        .slot = c->spec->slot,
        .extra = g_key_file_new(),
    };
    g_key_file_set_string(c->record.extra, "microvm", "image", c->image->key);
    g_key_file_set_string(c->record.extra, "microvm", "accel",
                          sp_accel_name(c->image->identity.accel));
    return sp_record_save(c->spec->run_dir, &c->record, error);
}

static bool clone_disk(struct creation *c, GError **error)
{
    g_autofree char *path = sp_microvm_disk_path(c->vm, c->spec->id);
    g_autofree char *folder = g_path_get_dirname(path);
    if (g_mkdir_with_parents(folder, 0755) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "make %s", folder);
        return false;
    }
    if (!sp_file_clone(c->image->disk_path, path, 0600, NULL, error))
        return false;
    c->rw_fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (c->rw_fd >= 0)
        return true;
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", path);
    return false;
}

/* The CPU limit comes only when the guest is ready: start and restore run in bursts that a quota of
 * less than a CPU would stretch, and no code of the sandbox runs before. */
static bool set_limits(struct creation *c, double cpus, GError **error)
{
    const struct sp_boot_identity *identity = &c->image->identity;
    struct sp_cgroup_limits limits = {
        .memory_bytes = identity->memory_mb * MIB +
                        sp_qemu_overhead_bytes(identity->accel, identity->memory_mb),
        .pids = SP_VMM_PIDS,
        .cpus = cpus,
    };
    return sp_cgroup_create(c->cgroup, &limits, error);
}

static bool start_vmm(struct creation *c, GError **error)
{
    const struct sp_boot_identity *identity = &c->image->identity;
    struct sp_vmm_spec vmm = {
        .name = c->spec->id,
        .run_dir = c->spec->run_dir,
        .config =
            {
                .qemu_path = c->vm->qemu_path,
                .accel = identity->accel,
                .memory_mb = identity->memory_mb,
                .vcpus = identity->vcpus,
            },
        .kvm_node = c->image->host->kvm_node,
        .uid = SP_SLOT_UID(c->spec->slot),
        .file_limit_bytes = (uint64_t)(identity->disk_mb * MIB),
        .memory_fd = c->image->memory_fd,
        .root_fd = c->root_fd,
        .rw_fd = c->rw_fd,
        .kernel_fd = -1,
        .initramfs_fd = -1,
    };
    pid_t pid;
    c->cgroup = sp_cgroup_new(c->vm->cgroups, c->record.cgroup);
    vmm.cgroup = c->cgroup;
    return set_limits(c, 0, error) &&
           sp_vmm_start(c->vm->env->launcher, &vmm, &pid, &c->pidfd, error) &&
           sp_record_set_process(&c->record, pid, error) &&
           sp_record_save(c->spec->run_dir, &c->record, error);
}

static bool greet_vmm(struct creation *c, GError **error)
{
    c->qmp = sp_qmp_connect(c->spec->run_dir, SP_VMM_QMP, QMP_TIMEOUT_MS, error);
    return c->qmp != NULL;
}

/* A description of the saved state with an offset of its own. */
static int open_state(const struct sp_boot_image *image, GError **error)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", image->state_fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open saved state");
    return fd;
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
    SP_CLEANUP(sp_close_fdp) int state_fd = open_state(c->image, error);
    if (state_fd < 0)
        return false;
    json_t *events =
        json_pack("{s:[{s:s, s:b}]}", "capabilities", "capability", "events", "state", 1);
    return sp_qmp_run(c->qmp, "migrate-set-capabilities", events, -1, QMP_TIMEOUT_MS, error) &&
           sp_qmp_run(c->qmp, "getfd", json_pack("{s:s}", "fdname", "state"), state_fd,
                      QMP_TIMEOUT_MS, error) &&
           sp_qmp_run(c->qmp, "migrate-incoming", json_pack("{s:s}", "uri", "fd:state"), -1,
                      QMP_TIMEOUT_MS, error) &&
           await_loaded(c->qmp, error);
}

/* The guest runs; its agent is locked and answers. */
static bool resume(struct creation *c, GError **error)
{
    if (!sp_qmp_run(c->qmp, "cont", NULL, -1, QMP_TIMEOUT_MS, error))
        return false;
    int fd = sp_endpoint_connect(c->spec->run_dir, SP_VMM_AGENT, AGENT_TIMEOUT_MS, error);
    if (fd < 0)
        return false;
    c->talk = sp_boot_talk_new(fd);
    if (!sp_boot_talk_hello(c->talk, c->spec->id, true, AGENT_TIMEOUT_MS, error) ||
        !set_limits(c, c->spec->shape.cpus, error))
        return false;
    c->record.started = true;
    return sp_record_save(c->spec->run_dir, &c->record, error);
}

static const struct {
    const char *name;
    bool (*run)(struct creation *c, GError **error);
    bool in_vmm; /* its log may say why it failed */
} steps[] = {
    {"boot_image", open_image, false}, {"record", record_intent, false},
    {"disk_clone", clone_disk, false}, {"qemu_start", start_vmm, true},
    {"qemu_ready", greet_vmm, true},   {"restore", load_state, true},
    {"resume", resume, true},
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

static void creation_clear(struct creation *c)
{
    sp_boot_talk_free(c->talk);
    sp_qmp_free(c->qmp);
    sp_cgroup_free_p(&c->cgroup);
    sp_boot_image_unref(c->image);
    sp_record_clear(&c->record);
    sp_close_fdp(&c->root_fd);
    sp_close_fdp(&c->rw_fd);
    sp_close_fdp(&c->pidfd);
}

struct sp_instance *sp_microvm_create(struct sp_driver *driver, const struct sp_driver_spec *spec,
                                      sp_step_fn step, void *user, GError **error)
{
    struct creation c = {
        .vm = (struct sp_microvm *)driver,
        .spec = spec,
        .root_fd = -1,
        .rw_fd = -1,
        .pidfd = -1,
    };
    struct sp_instance *instance = NULL;
    if (run_steps(&c, step, user, error)) {
        instance = sp_microvm_instance_new(c.vm, spec->run_dir, sp_steal_fd(&c.pidfd),
                                           sp_boot_talk_steal_fd(c.talk));
    } else {
        /* What this cannot remove now, the caller's own destroy() will: the record names it. */
        sp_microvm_destroy(driver, spec->run_dir, NULL);
    }
    creation_clear(&c);
    return instance;
}
