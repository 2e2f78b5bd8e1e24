#include "os/seccomp.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"

/* The first system call number that was not reviewed (the numbers of new calls are the same on
 * every architecture). 456 is futex_requeue, Linux 6.7. */
#define FIRST_UNKNOWN 457

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

/* By name, since not every architecture has each. */
static const char *const refused[] = {
    /* mounts and roots */
    "mount",
    "umount",
    "umount2",
    "pivot_root",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "open_tree",
    "move_mount",
    "mount_setattr",
    /* namespaces */
    "setns",
    "unshare",
    /* kernel programs, tracing, queues with a history */
    "bpf",
    "perf_event_open",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "userfaultfd",
    "kcmp",
    "lookup_dcookie",
    "fanotify_init",
    /* keyrings: not namespaced for other users' keys */
    "add_key",
    "request_key",
    "keyctl",
    /* file handles go around path checks */
    "open_by_handle_at",
    "name_to_handle_at",
    /* the host as a whole */
    "init_module",
    "finit_module",
    "delete_module",
    "create_module",
    "kexec_load",
    "kexec_file_load",
    "reboot",
    "swapon",
    "swapoff",
    "settimeofday",
    "clock_settime",
    "clock_adjtime",
    "adjtimex",
    "stime",
    "acct",
    "quotactl",
    "quotactl_fd",
    "syslog",
    "iopl",
    "ioperm",
    "modify_ldt",
    "vm86",
    "vm86old",
    "nfsservctl",
    "_sysctl",
    "uselib",
    "ustat",
    "sysfs",
    "vhangup",
    "get_kernel_syms",
    "query_module",
    "migrate_pages",
    "move_pages",
    "mbind",
    "set_mempolicy",
    "set_mempolicy_home_node",
    "memfd_secret",
    "mknod",
    "mknodat",
};

static const unsigned new_namespaces[] = {
    CLONE_NEWNS,  CLONE_NEWUSER, CLONE_NEWPID,    CLONE_NEWNET,
    CLONE_NEWIPC, CLONE_NEWUTS,  CLONE_NEWCGROUP, CLONE_NEWTIME,
};

static bool add(scmp_filter_ctx ctx, uint32_t action, int nr, unsigned n,
                const struct scmp_arg_cmp *args, GError **error)
{
    int r = seccomp_rule_add_array(ctx, action, nr, n, args);
    if (r == 0)
        return true;
    sp_error_set_errno(error, SP_ERROR_INTERNAL, -r, "seccomp rule of call %d", nr);
    return false;
}

static bool add_refused(scmp_filter_ctx ctx, GError **error)
{
    for (size_t i = 0; i < G_N_ELEMENTS(refused); i++) {
        int nr = seccomp_syscall_resolve_name(refused[i]);
        if (nr == __NR_SCMP_ERROR || nr < 0)
            continue; /* negative: this architecture has no such call */
        bool node = g_str_has_prefix(refused[i], "mknod");
        if (!node && !add(ctx, SCMP_ACT_ERRNO(EPERM), nr, 0, NULL, error))
            return false;
        /* mknod makes FIFOs and sockets too: only devices are refused. */
        unsigned mode_arg = g_str_equal(refused[i], "mknodat") ? 2 : 1;
        for (unsigned type = 0; node && type < 2; type++) {
            struct scmp_arg_cmp device =
                SCMP_CMP(mode_arg, SCMP_CMP_MASKED_EQ, 0170000, type ? 0060000 : 0020000);
            if (!add(ctx, SCMP_ACT_ERRNO(EPERM), nr, 1, &device, error))
                return false;
        }
    }
    return true;
}

static bool add_clone_and_personality(scmp_filter_ctx ctx, GError **error)
{
    for (size_t i = 0; i < G_N_ELEMENTS(new_namespaces); i++) {
        struct scmp_arg_cmp flag =
            SCMP_A0(SCMP_CMP_MASKED_EQ, new_namespaces[i], new_namespaces[i]);
        /* In clone(2) the low byte is the exit signal, so CLONE_NEWTIME cannot be asked for. */
        if (new_namespaces[i] != CLONE_NEWTIME &&
            !add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1, &flag, error))
            return false;
    }
    struct scmp_arg_cmp other = SCMP_A0(SCMP_CMP_NE, 0);
    if (!add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(personality), 1, &other, error))
        return false;
    /* Typing into a terminal that someone else reads. */
    static const unsigned bad_ioctls[] = {TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD};
    for (size_t i = 0; i < G_N_ELEMENTS(bad_ioctls); i++) {
        struct scmp_arg_cmp request = SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffffu, bad_ioctls[i]);
        if (!add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(ioctl), 1, &request, error))
            return false;
    }
    return true;
}

/* RLIMIT_CORE stays at 1, the one value for which no handler of the host (a core_pattern that
 * begins with '|') is run: fs/coredump.c. Programs that want fewer core dumps are told that it is
 * done, for some treat a failure as fatal. And nobody changes the limits of pid 1. */
static bool add_limits(scmp_filter_ctx ctx, GError **error)
{
    struct scmp_arg_cmp set[] = {SCMP_A0(SCMP_CMP_MASKED_EQ, 0xffffffffu, RLIMIT_CORE)};
    struct scmp_arg_cmp change[] = {SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffffu, RLIMIT_CORE),
                                    SCMP_A2(SCMP_CMP_NE, 0), SCMP_A3(SCMP_CMP_EQ, 0)};
    struct scmp_arg_cmp exchange[] = {SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffffu, RLIMIT_CORE),
                                      SCMP_A2(SCMP_CMP_NE, 0), SCMP_A3(SCMP_CMP_NE, 0)};
    struct scmp_arg_cmp of_init[] = {SCMP_A0(SCMP_CMP_MASKED_EQ, 0xffffffffu, 1),
                                     SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffffu, 0),
                                     SCMP_A2(SCMP_CMP_NE, 0)};
    if (!add(ctx, SCMP_ACT_ERRNO(0), SCMP_SYS(setrlimit), 1, set, error) ||
        !add(ctx, SCMP_ACT_ERRNO(0), SCMP_SYS(prlimit64), 3, change, error) ||
        !add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(prlimit64), 3, exchange, error))
        return false;
    for (unsigned resource = 0; resource < RLIM_NLIMITS; resource++) {
        if (resource == RLIMIT_CORE)
            continue;
        of_init[1].datum_b = resource;
        if (!add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(prlimit64), 3, of_init, error))
            return false;
    }
    return true;
}

/* AF_UNIX, AF_INET, AF_INET6 and NETLINK_ROUTE are left. */
static bool add_sockets(scmp_filter_ctx ctx, GError **error)
{
    for (unsigned family = 0; family <= AF_NETLINK; family++) {
        if (family == AF_UNIX || family == AF_INET || family == AF_INET6 || family == AF_NETLINK)
            continue;
        struct scmp_arg_cmp same = SCMP_A0(SCMP_CMP_MASKED_EQ, 0xffffffffu, family);
        if (!add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1, &same, error))
            return false;
    }
    struct scmp_arg_cmp above = SCMP_A0(SCMP_CMP_GT, AF_NETLINK);
    struct scmp_arg_cmp netlink[] = {SCMP_A0(SCMP_CMP_MASKED_EQ, 0xffffffffu, AF_NETLINK),
                                     SCMP_A2(SCMP_CMP_NE, NETLINK_ROUTE)};
    return add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1, &above, error) &&
           add(ctx, SCMP_ACT_ERRNO(EPROTONOSUPPORT), SCMP_SYS(socket), 2, netlink, error);
}

/* Puts "number >= FIRST_UNKNOWN: ENOSYS" in front of an exported program; libseccomp has no rule
 * for a range of numbers. x32 numbers are above it too. */
static bool finish(int blob, GError **error)
{
    const struct sock_filter head[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, FIRST_UNKNOWN, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
    };
    struct sock_filter body[BPF_MAXINSNS];
    ssize_t n = pread(blob, body, sizeof body, 0);
    if (n > 0 && (size_t)n % sizeof body[0] == 0 && (size_t)n + sizeof head <= sizeof body &&
        pwrite(blob, head, sizeof head, 0) == (ssize_t)sizeof head &&
        pwrite(blob, body, (size_t)n, sizeof head) == n &&
        fcntl(blob, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0)
        return true;
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "seccomp program of %zd bytes", n);
    return false;
}

int sp_seccomp_container_new(GError **error)
{
    int blob = -1;
    scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
    if (!ctx) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_INTERNAL, "seccomp_init failed");
        return -1;
    }
    /* Optimize 2: a binary tree instead of a list, a dozen instructions a call instead of 100. */
    if (seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS) < 0 ||
        seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2) < 0) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "libseccomp is too old");
        goto fail;
    }
    if (!add_refused(ctx, error) || !add_clone_and_personality(ctx, error) ||
        !add_limits(ctx, error) || !add_sockets(ctx, error))
        goto fail;
    blob = memfd_create("seccomp", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int r = blob < 0 ? -errno : seccomp_export_bpf(ctx, blob);
    if (r < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, -r, "export the seccomp program");
        goto fail;
    }
    if (!finish(blob, error))
        goto fail;
    seccomp_release(ctx);
    return blob;
fail:
    if (blob >= 0)
        close(blob);
    seccomp_release(ctx);
    return -1;
}
