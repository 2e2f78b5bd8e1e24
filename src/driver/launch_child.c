/*
 * Runs a plan's steps inside the new process.
 *
 * The process shares the launcher's memory (CLONE_VM: no page tables are copied, which is most of
 * the cost of a fork), so nothing here may allocate, write a global, or set errno: only sp_raw().
 * Its kernel state (fds, credentials, mounts, root, umask, signals) is its own.
 */
#include "driver/launch_child.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "driver/plan_private.h"
#include "os/mount.h"
#include "os/raw_syscall.h"

/* Any existing directory of the host: the new root covers it in the private mount namespace only.
 */
#define ROOT_PLACE "/tmp"
#define ATTR_FLAGS (SP_MOUNT_RO | SP_MOUNT_NOSUID | SP_MOUNT_NODEV | SP_MOUNT_NOEXEC)
#define HIGH_FD (SP_PLAN_MAX_NUMBER + 1)
#define LISTEN_BACKLOG 8

/* The stack is not one that the sanitizer knows, and the function never returns to unpoison it. */
#define CHILD_CODE __attribute__((no_sanitize("address", "undefined")))

CHILD_CODE static long attach(int fd, const char *target)
{
    return sp_raw(SYS_move_mount, fd, "", AT_FDCWD, target, SP_MOVE_F_EMPTY);
}

CHILD_CODE static long set_attr(int dirfd, const char *path, unsigned attr, unsigned at_flags)
{
    struct sp_mount_attr a = {.attr_set = attr};
    return attr ? sp_raw(SYS_mount_setattr, dirfd, path, at_flags, &a, sizeof a) : 0;
}

CHILD_CODE static long do_root(const struct sp_step *step, int fd)
{
    long r;
    if (step->kind == SP_STEP_ROOT_FD) {
        r = attach(fd, ROOT_PLACE);
        return r < 0 ? r : sp_raw(SYS_fchdir, fd);
    }
    r = sp_raw(SYS_mount, "tmpfs", ROOT_PLACE, "tmpfs", SP_MOUNT_NOSUID | SP_MOUNT_NODEV,
               step->text[0]);
    return r < 0 ? r : sp_raw(SYS_chdir, ROOT_PLACE);
}

CHILD_CODE static long do_bind(const struct sp_step *step)
{
    unsigned recursive = step->a & SP_BIND_RECURSIVE ? 0x8000u /* AT_RECURSIVE */ : 0;
    long fd =
        sp_raw(SYS_open_tree, AT_FDCWD, step->text[1], SP_OPEN_TREE_CLONE | O_CLOEXEC | recursive);
    if (fd < 0)
        return fd == -ENOENT && (step->a & SP_BIND_OPTIONAL) ? 0 : fd;
    long r = set_attr((int)fd, "", step->a & ATTR_FLAGS, AT_EMPTY_PATH | recursive);
    if (r >= 0)
        r = attach((int)fd, step->text[0]);
    sp_raw(SYS_close, fd);
    return r == -ENOENT && (step->a & SP_BIND_OPTIONAL) ? 0 : r;
}

CHILD_CODE static long do_file(const struct sp_step *step)
{
    const char *path = step->text[0];
    long r;
    if (step->kind == SP_STEP_SYMLINK)
        return sp_raw(SYS_symlinkat, step->text[1], AT_FDCWD, path);
    if (step->kind == SP_STEP_MKDIR)
        r = sp_raw(SYS_mkdirat, AT_FDCWD, path, step->a);
    else
        r = sp_raw(SYS_mknodat, AT_FDCWD, path, S_IFREG | step->a, 0);
    return r == -EEXIST ? 0 : r;
}

CHILD_CODE static long do_mount(const struct sp_step *step, int fd)
{
    switch (step->kind) {
    case SP_STEP_PRIVATE_MOUNTS:
        return sp_raw(SYS_mount, 0, "/", 0, MS_REC | MS_PRIVATE, 0);
    case SP_STEP_ATTACH:
        return attach(fd, step->text[0]);
    case SP_STEP_MOUNT:
        return sp_raw(SYS_mount, step->text[1], step->text[0], step->text[1], step->a & ATTR_FLAGS,
                      step->text[2]);
    case SP_STEP_BIND:
        return do_bind(step);
    case SP_STEP_REMOUNT:
        return set_attr(AT_FDCWD, step->text[0], step->a & ATTR_FLAGS, 0);
    case SP_STEP_PIVOT: /* pivot_root(2), NOTES: the old root is then stacked on top of "." */
        return sp_raw(SYS_pivot_root, ".", ".");
    default: { /* SP_STEP_DROP_OLD_ROOT */
        long r = sp_raw(SYS_umount2, ".", MNT_DETACH);
        return r < 0 ? r : sp_raw(SYS_chdir, "/");
    }
    }
}

CHILD_CODE static long do_lo_up(void)
{
    struct ifreq request;
    for (unsigned i = 0; i < sizeof request; i++)
        ((volatile char *)&request)[i] = 0;
    request.ifr_name[0] = 'l';
    request.ifr_name[1] = 'o';
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    long fd = sp_raw(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    long r = sp_raw(SYS_ioctl, fd, 0x8914 /* SIOCSIFFLAGS, netdevice(7) */, &request);
    sp_raw(SYS_close, fd);
    return r;
}

CHILD_CODE static long do_become(uint32_t uid, uint32_t gid)
{
    long r = sp_raw(SYS_setgroups, 0, 0);
    if (r >= 0)
        r = sp_raw(SYS_setresgid, gid, gid, gid);
    return r < 0 ? r : sp_raw(SYS_setresuid, uid, uid, uid);
}

/* The bounding set only: the process's own sets are still needed by later steps. */
CHILD_CODE static long do_bounding_set(uint64_t keep)
{
    for (unsigned c = 0; c < 64; c++) {
        if (keep & (UINT64_C(1) << c))
            continue;
        long r = sp_raw(SYS_prctl, PR_CAPBSET_DROP, c, 0, 0, 0);
        if (r == -EINVAL)
            break; /* beyond the kernel's last capability */
        if (r < 0)
            return r;
    }
    return sp_raw(SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
}

/* Permitted and effective become what they were, but within keep; nothing is inheritable. */
CHILD_CODE static long drop_own_capabilities(uint64_t keep)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    long r = sp_raw(SYS_capget, &head, data);
    if (r < 0)
        return r;
    for (unsigned i = 0; i < 2; i++) {
        uint32_t part = (uint32_t)(keep >> (32 * i));
        data[i].permitted &= part;
        data[i].effective &= part;
        data[i].inheritable = 0;
    }
    return sp_raw(SYS_capset, &head, data);
}

CHILD_CODE static long do_seccomp(const struct sp_launch *launch)
{
    struct sock_fprog program = {.len = launch->n_program,
                                 .filter = (struct sock_filter *)launch->program};
    return sp_raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

CHILD_CODE static long do_rlimit(const struct sp_step *step)
{
    struct rlimit64 limit = {.rlim_cur = step->a, .rlim_max = step->b};
    return sp_raw(SYS_prlimit64, 0, step->number, &limit, 0);
}

/* Steps run with umask 0: the mode comes from it. */
CHILD_CODE static long do_listen(struct sp_launch *launch, const char *path)
{
    struct sockaddr_un address;
    address.sun_family = AF_UNIX;
    unsigned len = 0;
    do { /* the decoder has not looked at the length */
        if (len >= sizeof address.sun_path)
            return -ENAMETOOLONG;
        address.sun_path[len] = path[len];
    } while (path[len++]);
    long fd = sp_raw(SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    launch->listen_fd = (int)fd;
    sp_raw(SYS_umask, 0177);
    long r = sp_raw(SYS_bind, fd, &address, offsetof(struct sockaddr_un, sun_path) + len);
    sp_raw(SYS_umask, 0);
    return r < 0 ? r : sp_raw(SYS_listen, fd, LISTEN_BACKLOG);
}

CHILD_CODE static long do_step(struct sp_launch *launch, const struct sp_step *step)
{
    int fd = step->fd >= 0 ? launch->plan->fds[step->fd].fd : -1;
    switch (step->kind) {
    case SP_STEP_ROOT_FD:
    case SP_STEP_ROOT_TMPFS:
        return do_root(step, fd);
    case SP_STEP_MKDIR:
    case SP_STEP_TOUCH:
    case SP_STEP_SYMLINK:
        return do_file(step);
    case SP_STEP_HOSTNAME: {
        unsigned len = 0;
        while (step->text[0][len])
            len++;
        return sp_raw(SYS_sethostname, step->text[0], len);
    }
    case SP_STEP_LO_UP:
        return do_lo_up();
    case SP_STEP_CGROUP_NAMESPACE:
        return sp_raw(SYS_unshare, CLONE_NEWCGROUP);
    case SP_STEP_RLIMIT:
        return do_rlimit(step);
    case SP_STEP_BECOME:
        return do_become((uint32_t)step->a, (uint32_t)step->b);
    case SP_STEP_CAPABILITIES:
        return do_bounding_set(step->a);
    case SP_STEP_NO_NEW_PRIVS:
        return sp_raw(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    case SP_STEP_SECCOMP:
        return do_seccomp(launch);
    case SP_STEP_LISTEN:
        return do_listen(launch, step->text[0]);
    default:
        return do_mount(step, fd);
    }
}

/* Gives the program its numbers: all sources are first lifted above the target range, so that no
 * target can overwrite a source. */
CHILD_CODE static long place_fds(const struct sp_launch *launch)
{
    const struct sp_plan *plan = launch->plan;
    long source[SP_PLAN_MAX_NUMBER + 1];
    for (int i = 0; i <= SP_PLAN_MAX_NUMBER; i++)
        source[i] = -1;
    for (unsigned i = 0; i < plan->n_fds; i++) {
        if (plan->fds[i].pass_as < 0)
            continue;
        long r = sp_raw(SYS_fcntl, plan->fds[i].fd, F_DUPFD_CLOEXEC, HIGH_FD);
        if (r < 0)
            return r;
        source[plan->fds[i].pass_as] = r;
    }
    for (unsigned i = 0; i < plan->n_steps; i++) {
        if (plan->steps[i].kind != SP_STEP_LISTEN)
            continue;
        long r = sp_raw(SYS_fcntl, launch->listen_fd, F_DUPFD_CLOEXEC, HIGH_FD);
        if (r < 0)
            return r;
        source[plan->steps[i].number] = r;
    }
    for (int number = 0; number <= 2; number++) {
        if (source[number] >= 0)
            continue;
        long null = sp_raw(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC, 0);
        source[number] = null < 0 ? null : sp_raw(SYS_fcntl, null, F_DUPFD_CLOEXEC, HIGH_FD);
        if (source[number] < 0)
            return source[number];
    }
    for (int number = 0; number <= SP_PLAN_MAX_NUMBER; number++) {
        long r = source[number] >= 0 ? sp_raw(SYS_dup3, source[number], number, 0)
                                     : sp_raw(SYS_close, number);
        if (r < 0 && r != -EBADF)
            return r;
    }
    return sp_raw(SYS_close_range, HIGH_FD, ~0U, 0);
}

CHILD_CODE static long drop_capabilities(const struct sp_plan *plan)
{
    for (unsigned i = 0; i < plan->n_steps; i++)
        if (plan->steps[i].kind == SP_STEP_CAPABILITIES)
            return drop_own_capabilities(plan->steps[i].a);
    return 0;
}

_Noreturn CHILD_CODE static void fail(struct sp_launch *launch, int place, long result)
{
    launch->failed_place = place;
    launch->failed_errno = result < 0 ? (int)-result : EIO;
    for (;;)
        sp_raw(SYS_exit_group, 127);
}

CHILD_CODE static void wait_for_go(struct sp_launch *launch)
{
    while (__atomic_load_n(&launch->go, __ATOMIC_ACQUIRE) == SP_GO_WAIT)
        sp_raw(SYS_futex, &launch->go, FUTEX_WAIT, SP_GO_WAIT, 0);
    if (__atomic_load_n(&launch->go, __ATOMIC_ACQUIRE) == SP_GO_EXIT)
        for (;;)
            sp_raw(SYS_exit_group, 0);
}

CHILD_CODE void sp_launch_child(void *argument)
{
    struct sp_launch *launch = argument;
    const struct sp_plan *plan = launch->plan;
    wait_for_go(launch);
    long r;
    for (unsigned i = 0; i < plan->n_cgroup_procs; i++) {
        r = sp_raw(SYS_write, plan->fds[plan->cgroup_procs[i]].fd, "0", 1);
        if (r < 0)
            fail(launch, SP_LAUNCH_CGROUP, r);
    }
    sp_raw(SYS_setsid);
    sp_raw(SYS_umask, 0);
    for (unsigned i = 0; i < plan->n_steps; i++) {
        r = do_step(launch, &plan->steps[i]);
        if (r < 0)
            fail(launch, (int)i, r);
    }
    sp_raw(SYS_umask, 022);
    r = sp_raw(SYS_chdir, plan->chdir ? plan->chdir : "/");
    if (r < 0)
        fail(launch, SP_LAUNCH_CHDIR, r);
    r = drop_capabilities(plan);
    if (r < 0)
        fail(launch, SP_LAUNCH_DROP_CAPABILITIES, r);
    r = place_fds(launch);
    if (r < 0)
        fail(launch, SP_LAUNCH_PASS_FDS, r);
    launch->at_exec = 1;
    r = sp_raw(SYS_execve, plan->exec_path, plan->argv, plan->env);
    fail(launch, SP_LAUNCH_EXEC, r);
}
