#include "driver/microvm/vmm.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/microvm/memory.h"
#include "driver/microvm/uffd/uffd_open.h"
#include "os/endpoint.h"
#include "os/cleanup.h"
#include "os/mount.h"

#define LOG_TAIL_BYTES 300

/* Libraries and firmware, read-only. */
static void add_root(struct sp_plan *plan, const struct sp_vmm_spec *spec,
                     const struct sp_vmm_files *files)
{
    static const char *const folders[] = {"usr/lib", "usr/lib64",      "lib",
                                          "lib64",   "usr/share/qemu", "usr/share/seabios"};
    const unsigned flags = SP_MOUNT_RO | SP_MOUNT_NOSUID | SP_MOUNT_NODEV;
    static const char *const parents[] = {"usr", "usr/bin", "usr/share", "etc", "dev", "proc"};

    sp_plan_private_mounts(plan);
    sp_plan_root_tmpfs(plan, "size=256k,nr_inodes=64,mode=755");
    for (unsigned i = 0; i < G_N_ELEMENTS(parents); i++)
        sp_plan_mkdir(plan, parents[i], 0755);
    for (unsigned i = 0; i < G_N_ELEMENTS(folders); i++) {
        g_autofree char *source = g_strconcat("/", folders[i], NULL);
        sp_plan_mkdir(plan, folders[i], 0755);
        sp_plan_bind(plan, source, folders[i], flags | SP_BIND_OPTIONAL);
    }
    sp_plan_touch(plan, "etc/ld.so.cache", 0644);
    sp_plan_bind(plan, "/etc/ld.so.cache", "etc/ld.so.cache", flags | SP_BIND_OPTIONAL);
    sp_plan_touch(plan, "usr/bin/qemu", 0755);
    sp_plan_bind(plan, spec->config.qemu_path, "usr/bin/qemu", flags);
    if (spec->config.accel == SP_ACCEL_KVM) {
        sp_plan_touch(plan, "dev/kvm", 0666);
        sp_plan_attach(plan, "kvm", files->kvm_fd, "dev/kvm");
    }
    sp_plan_pivot(plan);
    sp_plan_mount(plan, "proc", "/proc", NULL, SP_MOUNT_NOSUID | SP_MOUNT_NODEV | SP_MOUNT_NOEXEC);
    sp_plan_drop_old_root(plan);
    sp_plan_remount(plan, "/", SP_MOUNT_RO | SP_MOUNT_NOSUID | SP_MOUNT_NODEV);
}

static void add_limits(struct sp_plan *plan, const struct sp_vmm_spec *spec)
{
    /* 1, not 0: fs/coredump.c. A dump holds the guest's RAM, and a handler of the host would get
     * it. */
    sp_plan_rlimit(plan, RLIMIT_CORE, 1, 1);
    sp_plan_rlimit(plan, RLIMIT_NOFILE, 256, 256);
    sp_plan_rlimit(plan, RLIMIT_FSIZE, spec->file_limit_bytes, spec->file_limit_bytes);
    sp_plan_capabilities(plan, 0);
    sp_plan_become(plan, spec->uid, spec->uid);
    sp_plan_no_new_privs(plan);
}

static void add_fds(struct sp_plan *plan, const struct sp_vmm_spec *spec,
                    const struct sp_vmm_files *files)
{
    sp_plan_pass_fd_borrowed(plan, "null", files->null_fd, 0);
    sp_plan_pass_fd_borrowed(plan, "null", files->null_fd, 1);
    sp_plan_pass_fd_borrowed(plan, "log", files->log_fd, SP_VMM_FD_LOG);
    sp_plan_pass_fd_borrowed(plan, "memory", spec->memory_fd, SP_VMM_FD_MEMORY);
    sp_plan_pass_fd_borrowed(plan, "qmp", files->qmp_fd, SP_VMM_FD_QMP);
    sp_plan_pass_fd_borrowed(plan, "agent", files->agent_fd, SP_VMM_FD_AGENT);
    sp_plan_pass_fd_borrowed(plan, "root", spec->root_fd, SP_VMM_FD_ROOT);
    sp_plan_pass_fd_borrowed(plan, "rw", spec->rw_fd, SP_VMM_FD_RW);
    if (spec->config.boot) {
        sp_plan_pass_fd_borrowed(plan, "kernel", spec->kernel_fd, SP_VMM_FD_KERNEL);
        sp_plan_pass_fd_borrowed(plan, "initramfs", spec->initramfs_fd, SP_VMM_FD_INITRAMFS);
    }
    if (spec->track)
        sp_plan_pass_fd_borrowed(plan, "library", files->library_fd, SP_VMM_FD_LIBRARY);
}

struct sp_plan *sp_vmm_plan(const struct sp_vmm_spec *spec, const struct sp_vmm_files *files)
{
    char preload[64];
    snprintf(preload, sizeof preload, "LD_PRELOAD=/proc/self/fd/%d", SP_VMM_FD_LIBRARY);
    const char *env[] = {"LC_ALL=C", spec->track ? preload : NULL, NULL};
    struct sp_plan *plan = sp_plan_new(spec->name);
    sp_plan_namespaces(plan,
                       CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS);
    add_root(plan, spec, files);
    add_limits(plan, spec);
    add_fds(plan, spec, files);
    g_auto(GStrv) argv = sp_qemu_argv(&spec->config);
    sp_plan_exec(plan, "/usr/bin/qemu", (const char *const *)argv, env);
    return plan;
}

static int open_log(const char *run_dir, GError **error)
{
    g_autofree char *path = g_build_filename(run_dir, SP_VMM_LOG, NULL);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", path);
    return fd;
}

bool sp_vmm_start(struct sp_launcher *launcher, const struct sp_vmm_spec *spec, pid_t *ret_pid,
                  int *ret_pidfd, GError **error)
{
    SP_CLEANUP(sp_close_fdp) int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    SP_CLEANUP(sp_close_fdp) int log_fd = open_log(spec->run_dir, error);
    if (log_fd < 0)
        return false;
    SP_CLEANUP(sp_close_fdp) int qmp_fd = sp_endpoint_listen(spec->run_dir, SP_VMM_QMP, error);
    if (qmp_fd < 0)
        return false;
    SP_CLEANUP(sp_close_fdp) int agent_fd = sp_endpoint_listen(spec->run_dir, SP_VMM_AGENT, error);
    if (agent_fd < 0)
        return false;
    G_STATIC_ASSERT(SP_UFFD_FD == SP_VMM_FD_LIBRARY);
    SP_CLEANUP(sp_close_fdp) int library_fd = -1;
    if (spec->track) {
        library_fd = sp_memory_from_bytes("uffd", sp_uffd_library, sp_uffd_library_bytes, error);
        if (library_fd < 0)
            return false;
    }
    int kvm_fd = -1;
    if (spec->config.accel == SP_ACCEL_KVM) {
        /* By fd: the state directory may be hidden from the new process by its own root. */
        kvm_fd = sp_mount_clone(AT_FDCWD, spec->kvm_node, false, error);
        if (kvm_fd < 0)
            return false;
    }
    struct sp_vmm_files files = {
        .kvm_fd = kvm_fd,
        .null_fd = null_fd,
        .log_fd = log_fd,
        .qmp_fd = qmp_fd,
        .agent_fd = agent_fd,
        .library_fd = library_fd,
    };
    SP_CLEANUP(sp_plan_free_p) struct sp_plan *plan = sp_vmm_plan(spec, &files);
    if (spec->cgroup && !sp_plan_join_cgroup(plan, spec->cgroup, error))
        return false;
    return sp_launcher_spawn(launcher, plan, ret_pid, ret_pidfd, error);
}

char *sp_vmm_log_tail(const char *run_dir)
{
    g_autofree char *path = g_build_filename(run_dir, SP_VMM_LOG, NULL);
    SP_CLEANUP(sp_close_fdp) int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return NULL;
    char text[LOG_TAIL_BYTES + 1];
    ssize_t n = pread(fd, text, LOG_TAIL_BYTES, MAX(0, st.st_size - LOG_TAIL_BYTES));
    if (n <= 0)
        return NULL;
    for (ssize_t i = 0; i < n; i++) {
        if (!g_ascii_isprint(text[i]))
            text[i] = ' ';
    }
    text[n] = '\0';
    return g_strdup(g_strstrip(text));
}

void sp_vmm_explain(const char *run_dir, GError **error)
{
    g_autofree char *tail = error && *error ? sp_vmm_log_tail(run_dir) : NULL;
    if (!tail || !*tail)
        return;
    char *message = g_strdup_printf("%s: %s", (*error)->message, tail);
    g_free((*error)->message);
    (*error)->message = message;
}

bool sp_vmm_remove_files(const char *run_dir, GError **error)
{
    static const char *const names[] = {SP_VMM_QMP, SP_VMM_AGENT, SP_VMM_LOG};
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *path = g_build_filename(run_dir, names[i], NULL);
        if (unlink(path) < 0 && errno != ENOENT && errno != ENOTDIR) {
            sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "remove %s", path);
            return false;
        }
    }
    return true;
}
