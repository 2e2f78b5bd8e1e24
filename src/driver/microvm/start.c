#include "driver/microvm/start.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"
#include "base/limits.h"
#include "driver/microvm/resources.h"
#include "driver/microvm/track.h"
#include "driver/microvm/vmm.h"
#include "os/cleanup.h"

#define MIB INT64_C(1048576)
#define QMP_TIMEOUT_MS 10000

void sp_vm_start_init(struct sp_vm_start *start, const char *run_dir)
{
    *start = (struct sp_vm_start){.run_dir = g_strdup(run_dir), .rw_fd = -1, .pidfd = -1};
}

void sp_vm_start_clear(struct sp_vm_start *start)
{
    sp_qmp_free(start->qmp);
    sp_cgroup_free_p(&start->cgroup);
    sp_record_clear(&start->record);
    sp_close_fdp(&start->rw_fd);
    sp_close_fdp(&start->pidfd);
    g_free(start->run_dir);
    *start = (struct sp_vm_start){.rw_fd = -1, .pidfd = -1};
}

bool sp_vm_start_record(struct sp_vm_start *start, const struct sp_driver_spec *spec,
                        const struct sp_vm_facts *facts, GError **error)
{
    start->record = (struct sp_record){
        .id = g_strdup(spec->id),
        .tier = g_strdup("microvm"),
        .template_digest = g_strdup(spec->template_digest),
        .cgroup = g_strdup(facts->name),
        .slot = spec->slot,
    };
    sp_vm_facts_store(facts, &start->record);
    return sp_record_save(start->run_dir, &start->record, error);
}

/* The CPU limit comes only when the guest is ready: start and restore run in bursts that a quota of
 * less than a CPU would stretch, and no code of the sandbox runs before. */
bool sp_vm_start_limit(const struct sp_vm_start *start, const struct sp_vm_facts *facts,
                       double cpus, GError **error)
{
    struct sp_cgroup_limits limits = {
        .memory_bytes = facts->shape.memory_mb * MIB +
                        sp_qemu_overhead_bytes(facts->accel, facts->shape.memory_mb),
        .pids = SP_VMM_PIDS,
        .cpus = cpus,
    };
    return sp_cgroup_create(start->cgroup, &limits, error);
}

static int open_root(const char *template_dir, GError **error)
{
    g_autofree char *path = g_build_filename(template_dir, "image.erofs", NULL);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        sp_error_set_errno(error, SP_ERROR_NOT_FOUND, errno, "open %s", path);
    return fd;
}

bool sp_vm_start_process(struct sp_microvm *vm, const struct sp_vm_source *source,
                         const char *template_dir, struct sp_vm_start *start, GError **error)
{
    const struct sp_vm_facts *facts = &source->facts;
    SP_CLEANUP(sp_close_fdp) int root_fd = open_root(template_dir, error);
    if (root_fd < 0)
        return false;
    start->rw_fd = sp_vm_file_open(vm, facts->name, SP_VM_DISK, O_RDWR, error);
    if (start->rw_fd < 0)
        return false;
    bool boot = source->way == SP_WAY_BOOT;
    start->cgroup = sp_cgroup_new(vm->cgroups, start->record.cgroup);
    struct sp_vmm_spec vmm = {
        .name = start->record.id,
        .run_dir = start->run_dir,
        .config =
            {
                .qemu_path = vm->qemu_path,
                .accel = facts->accel,
                .memory_mb = facts->shape.memory_mb,
                .vcpus = facts->vcpus,
                .boot = boot,
                .tsc_khz = source->host->tsc_khz,
            },
        .kvm_node = source->host->kvm_node,
        .uid = SP_SLOT_UID(start->record.slot),
        .cgroup = start->cgroup,
        .file_limit_bytes = (uint64_t)(facts->shape.disk_mb * MIB),
        .memory_fd = source->ram->fd,
        .root_fd = root_fd,
        .rw_fd = start->rw_fd,
        .kernel_fd = boot ? source->guest->kernel_fd : -1,
        .initramfs_fd = boot ? source->guest->initramfs_fd : -1,
        .track = !vm->untracked && sp_tracker_possible(NULL),
    };
    pid_t pid;
    return sp_vm_start_limit(start, facts, 0, error) &&
           sp_vmm_start(vm->env->launcher, &vmm, &pid, &start->pidfd, error) &&
           sp_record_set_process(&start->record, pid, error) &&
           sp_record_save(start->run_dir, &start->record, error);
}

bool sp_vm_start_greet(struct sp_vm_start *start, GError **error)
{
    start->qmp = sp_qmp_connect(start->run_dir, SP_VMM_QMP, QMP_TIMEOUT_MS, error);
    return start->qmp && sp_qmp_run(start->qmp, "migrate-set-capabilities",
                                    json_pack("{s:[{s:s, s:b}]}", "capabilities", "capability",
                                              "events", "state", 1),
                                    -1, QMP_TIMEOUT_MS, error);
}
