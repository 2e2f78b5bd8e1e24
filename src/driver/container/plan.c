/* What the inside of a container sandbox looks like, as a plan. */
#include <linux/capability.h>
#include <sched.h>
#include <sys/resource.h>

#include "base/limits.h"
#include "driver/container/container.h"

#define NOFILE_SOFT 1024
#define KERNEL_FS (SP_MOUNT_NOSUID | SP_MOUNT_NODEV | SP_MOUNT_NOEXEC)
#define BIT(capability) (UINT64_C(1) << (capability))
/* For the agent only, which takes it from its children: what has a capability that others lack
 * cannot be looked into by them (agent/main.c). It is of no use in a user namespace. */
#define GUARD BIT(CAP_LEASE)
/* What package managers, daemons that change their user, and root's own tools need. */
#define CAPABILITIES                                                                               \
    (BIT(CAP_CHOWN) | BIT(CAP_DAC_OVERRIDE) | BIT(CAP_FOWNER) | BIT(CAP_FSETID) | BIT(CAP_KILL) |  \
     BIT(CAP_SETGID) | BIT(CAP_SETUID) | BIT(CAP_SETPCAP) | BIT(CAP_NET_BIND_SERVICE) |            \
     BIT(CAP_SYS_CHROOT) | GUARD)
#define NAMESPACES                                                                                 \
    (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)

/* Files of /proc that tell of the host's kernel or act on the host. Most are closed to other user
 * namespaces anyway. */
static const char *const masked[] = {
    "/proc/kcore",      "/proc/keys",          "/proc/kallsyms",    "/proc/kmsg",
    "/proc/timer_list", "/proc/sysrq-trigger", "/proc/sched_debug",
};
static const char *const read_only[] = {
    "/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/scsi",
};

static void add_proc(struct sp_plan *plan)
{
    sp_plan_mkdir(plan, "/proc", 0555);
    sp_plan_mount(plan, "proc", "/proc", NULL, KERNEL_FS);
    for (size_t i = 0; i < G_N_ELEMENTS(read_only); i++)
        sp_plan_bind(plan, read_only[i], read_only[i], SP_MOUNT_RO | KERNEL_FS | SP_BIND_OPTIONAL);
    for (size_t i = 0; i < G_N_ELEMENTS(masked); i++)
        sp_plan_bind(plan, "/dev/null", masked[i],
                     SP_MOUNT_RO | SP_MOUNT_NOSUID | SP_MOUNT_NOEXEC | SP_BIND_OPTIONAL);
}

/* /dev is shared and read-only; what a sandbox may change in it is its own: the terminals and shm.
 * /tmp is a plain directory of the layer, so that it counts as disk and not as memory. */
static void add_dev_and_run(struct sp_plan *plan, int dev_fd, int64_t memory_mb)
{
    sp_plan_mkdir(plan, "/dev", 0755);
    sp_plan_attach(plan, "dev", dev_fd, "/dev");
    sp_plan_mount(plan, "devpts", "/dev/pts", "newinstance,ptmxmode=0666,mode=0620,gid=5",
                  SP_MOUNT_NOSUID | SP_MOUNT_NOEXEC);
    char options[64];
    g_snprintf(options, sizeof options, "mode=1777,size=%" G_GINT64_FORMAT "m",
               MAX(memory_mb / 2, 1));
    sp_plan_mount(plan, "tmpfs", "/dev/shm", options, SP_MOUNT_NOSUID | SP_MOUNT_NODEV);
    g_snprintf(options, sizeof options, "mode=0755,size=%" G_GINT64_FORMAT "m",
               CLAMP(memory_mb / 8, 1, 64));
    sp_plan_mkdir(plan, "/run", 0755);
    sp_plan_mount(plan, "tmpfs", "/run", options, SP_MOUNT_NOSUID | SP_MOUNT_NODEV);
    sp_plan_mkdir(plan, "/tmp", 01777);
    /* The agent's socket is the sandbox's own in every way: of its network namespace and on a mount
     * of its own. CRIU could not save it otherwise. */
    sp_plan_mount(plan, "tmpfs", SP_CONTAINER_LINK_DIR, "mode=0700,size=4k,nr_inodes=3",
                  SP_MOUNT_NOSUID | SP_MOUNT_NODEV | SP_MOUNT_NOEXEC);
    sp_plan_listen(plan, SP_CONTAINER_LINK_DIR "/" SP_CONTAINER_SOCKET, 3);
}

static void add_privileges(struct sp_plan *plan, const struct sp_container_fds *fds)
{
    sp_plan_capabilities(plan, CAPABILITIES);
    sp_plan_no_new_privs(plan);
    sp_plan_seccomp(plan, "seccomp", fds->seccomp);
}

static void add_agent(struct sp_plan *plan, const struct sp_container_fds *fds)
{
    const char *argv[5] = {"space-agent", "--link-fd=3"};
    unsigned n = 2;
    if (fds->has_cgroup) {
        sp_plan_pass_fd(plan, "cgroup-below", fds->cgroup, 4);
        argv[n++] = "--cgroup-fd=4";
        sp_plan_pass_fd(plan, "oom", fds->oom, 5);
        argv[n++] = "--oom-fd=5";
    }
    sp_plan_exec(plan, SP_CONTAINER_AGENT, argv,
                 (const char *const[]){
                     "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", NULL});
}

struct sp_plan *sp_container_plan(const struct sp_driver_spec *spec,
                                  const struct sp_container_fds *fds, uint64_t nofile_hard)
{
    struct sp_plan *plan = sp_plan_new(spec->id);
    sp_plan_namespaces(plan, NAMESPACES);
    sp_plan_map_ids(plan, SP_SLOT_UID(spec->slot), SP_UID_BLOCK);
    sp_plan_become(plan, 0, 0);
    sp_plan_cgroup_namespace(plan);
    sp_plan_private_mounts(plan);
    sp_plan_root_fd(plan, "root", fds->root);
    sp_plan_pivot(plan);
    add_dev_and_run(plan, fds->dev, spec->shape.memory_mb);
    add_proc(plan); /* the kernel wants to see another /proc in the namespace: the old root's */
    sp_plan_drop_old_root(plan);
    sp_plan_hostname(plan, spec->hostname);
    sp_plan_lo_up(plan);
    /* Not 0: that does not keep the kernel from running a handler of the host. See os/seccomp.c. */
    sp_plan_rlimit(plan, RLIMIT_CORE, 1, 1);
    sp_plan_rlimit(plan, RLIMIT_NOFILE, MIN(NOFILE_SOFT, nofile_hard), nofile_hard);
    add_privileges(plan, fds);
    add_agent(plan, fds);
    return plan;
}

struct sp_plan *sp_container_probe_plan(const struct sp_container_fds *fds)
{
    static const char *const env[] = {NULL};
    struct sp_plan *plan = sp_plan_new("probe");
    sp_plan_namespaces(plan, NAMESPACES);
    sp_plan_map_ids(plan, SP_SLOT_UID(SP_SLOTS - 1), SP_UID_BLOCK);
    sp_plan_become(plan, 0, 0);
    sp_plan_cgroup_namespace(plan);
    sp_plan_private_mounts(plan);
    sp_plan_root_tmpfs(plan, "mode=755,size=1m");
    sp_plan_pivot(plan);
    add_dev_and_run(plan, fds->dev, 8);
    add_proc(plan);
    sp_plan_drop_old_root(plan);
    sp_plan_hostname(plan, "probe");
    sp_plan_lo_up(plan);
    add_privileges(plan, fds);
    /* It ends by itself: a worker that is killed now leaves nothing behind. */
    sp_plan_exec(plan, SP_READY_COMMAND[0], SP_READY_COMMAND, env);
    return plan;
}
