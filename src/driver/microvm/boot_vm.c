#include "driver/microvm/boot_vm.h"

#include <unistd.h>

#include "base/error.h"
#include "base/limits.h"
#include "os/endpoint.h"
#include "driver/microvm/memory.h"
#include "driver/microvm/vmm.h"
#include "os/cleanup.h"
#include "os/pidfd.h"

#define MIB INT64_C(1048576)
#define KILL_TIMEOUT_MS 5000
#define QMP_TIMEOUT_MS 10000
#define STATE_FDSET 9

static bool make_cgroup(struct sp_microvm *vm, const struct sp_boot_vm_spec *spec,
                        struct sp_boot_vm *boot, GError **error)
{
    boot->cgroup = sp_cgroup_new(vm->cgroups, spec->name);
    if (!sp_cgroup_kill(boot->cgroup, KILL_TIMEOUT_MS, error))
        return false;
    struct sp_cgroup_limits limits = {
        /* The RAM is shared memory here and charged to it as well. */
        .memory_bytes =
            spec->memory_mb * MIB + sp_qemu_overhead_bytes(spec->accel, spec->memory_mb),
        .pids = SP_VMM_PIDS,
    };
    return sp_cgroup_create(boot->cgroup, &limits, error);
}

static bool start_vmm(struct sp_microvm *vm, const struct sp_boot_vm_spec *spec,
                      struct sp_boot_vm *boot, GError **error)
{
    struct sp_vmm_spec vmm = {
        .name = spec->name,
        .run_dir = spec->dir,
        .config =
            {
                .qemu_path = vm->qemu_path,
                .accel = spec->accel,
                .memory_mb = spec->memory_mb,
                .vcpus = spec->vcpus,
                .boot = true,
                .shared_ram = true,
                .tsc_khz = spec->tsc_khz,
            },
        .kvm_node = spec->kvm_node,
        .uid = SP_VM_BUILDER_UID,
        .cgroup = boot->cgroup,
        .file_limit_bytes = (uint64_t)lseek(spec->rw_fd, 0, SEEK_END),
        .memory_fd = boot->memory_fd,
        .root_fd = spec->root_fd,
        .rw_fd = spec->rw_fd,
        .kernel_fd = spec->guest->kernel_fd,
        .initramfs_fd = spec->guest->initramfs_fd,
    };
    pid_t pid;
    return sp_vmm_start(vm->env->launcher, &vmm, &pid, &boot->pidfd, error);
}

static bool await_agent(const struct sp_boot_vm_spec *spec, struct sp_boot_vm *boot, GError **error)
{
    int fd = sp_endpoint_connect(spec->dir, SP_VMM_AGENT, QMP_TIMEOUT_MS, error);
    if (fd < 0)
        return false;
    boot->talk = sp_boot_talk_new(fd);
    return sp_boot_talk_hello(boot->talk, spec->name, false, spec->boot_timeout_ms, error);
}

bool sp_boot_vm_start(struct sp_microvm *vm, const struct sp_boot_vm_spec *spec,
                      struct sp_boot_vm *ret, GError **error)
{
    struct sp_boot_vm boot = {.dir = spec->dir, .memory_fd = -1, .pidfd = -1};
    bool ok = make_cgroup(vm, spec, &boot, error);
    if (ok) {
        boot.memory_fd = sp_memory_new("space-boot", spec->memory_mb * MIB, error);
        ok = boot.memory_fd >= 0;
    }
    ok = ok && start_vmm(vm, spec, &boot, error);
    if (ok) {
        boot.qmp = sp_qmp_connect(spec->dir, SP_VMM_QMP, QMP_TIMEOUT_MS, error);
        ok = boot.qmp && await_agent(spec, &boot, error);
        if (!ok)
            sp_vmm_explain(spec->dir, error);
    }
    if (!ok) {
        sp_boot_vm_clear(&boot);
        return false;
    }
    *ret = boot;
    return true;
}

bool sp_boot_vm_save(struct sp_boot_vm *boot, int state_fd, GError **error)
{
    /* The agent's side of the link is at rest: a frame under way would be lost with it. */
    g_clear_pointer(&boot->talk, sp_boot_talk_free);
    return sp_qmp_run(boot->qmp, "stop", NULL, -1, QMP_TIMEOUT_MS, error) &&
           sp_qmp_run(boot->qmp, "add-fd", json_pack("{s:i}", "fdset-id", STATE_FDSET), state_fd,
                      QMP_TIMEOUT_MS, error) &&
           /* live: without it the disks would be given up for a receiver to take over. */
           sp_qmp_run(boot->qmp, "xen-save-devices-state",
                      json_pack("{s:s, s:b}", "filename", "/dev/fdset/" G_STRINGIFY(STATE_FDSET),
                                "live", 0),
                      -1, QMP_TIMEOUT_MS, error);
}

bool sp_boot_vm_kill(struct sp_boot_vm *boot, GError **error)
{
    if (boot->pidfd >= 0 && !sp_pidfd_kill(boot->pidfd, KILL_TIMEOUT_MS, error))
        return false;
    return !boot->cgroup || (sp_cgroup_kill(boot->cgroup, KILL_TIMEOUT_MS, error) &&
                             sp_cgroup_remove(boot->cgroup, KILL_TIMEOUT_MS, error));
}

void sp_boot_vm_clear(struct sp_boot_vm *boot)
{
    sp_boot_talk_free(boot->talk);
    sp_qmp_free(boot->qmp);
    /* What cannot be killed now is killed by the next VM of this name. */
    sp_boot_vm_kill(boot, NULL);
    if (boot->pidfd >= 0)
        close(boot->pidfd);
    if (boot->memory_fd >= 0)
        close(boot->memory_fd);
    if (boot->cgroup)
        sp_cgroup_free(boot->cgroup);
    *boot = (struct sp_boot_vm){.memory_fd = -1, .pidfd = -1};
}
