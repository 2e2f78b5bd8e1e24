/* The filter, put on a child process of the test. */
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os/seccomp.h"

struct row {
    const char *name;
    int expected; /* errno; 0: not refused by the filter */
    long nr, a, b, c, d;
};

static const struct row rows[] = {
    {"getpid", 0, SYS_getpid},
    {"mount", EPERM, SYS_mount},
    {"umount2", EPERM, SYS_umount2},
    {"fsopen", EPERM, SYS_fsopen},
    {"open_tree", EPERM, SYS_open_tree},
    {"setns", EPERM, SYS_setns, -1},
    {"unshare", EPERM, SYS_unshare, 0},
    {"clone user", EPERM, SYS_clone, CLONE_NEWUSER},
    {"clone net+pid", EPERM, SYS_clone, CLONE_NEWNET | CLONE_NEWPID | SIGCHLD},
    {"clone3", EINVAL, SYS_clone3, 0, 0}, /* the kernel's own answer */
    {"bpf", EPERM, SYS_bpf},
    {"perf", EPERM, SYS_perf_event_open},
    {"keyctl", EPERM, SYS_keyctl},
    {"add_key", EPERM, SYS_add_key},
    {"userfaultfd", EPERM, SYS_userfaultfd},
    {"io_uring", EPERM, SYS_io_uring_setup},
    {"open_by_handle_at", EPERM, SYS_open_by_handle_at},
    {"init_module", EPERM, SYS_init_module},
    {"kexec_load", EPERM, SYS_kexec_load},
    {"reboot", EPERM, SYS_reboot},
    {"swapon", EPERM, SYS_swapon},
    {"clock_settime", EPERM, SYS_clock_settime},
    {"acct", EPERM, SYS_acct},
    {"quotactl", EPERM, SYS_quotactl},
    {"syslog", EPERM, SYS_syslog},
    {"kcmp", EPERM, SYS_kcmp},
    {"personality 0", 0, SYS_personality, 0},
    {"personality", EPERM, SYS_personality, 0x0040000},
    {"unix", 0, SYS_socket, AF_UNIX, SOCK_STREAM},
    {"inet", 0, SYS_socket, AF_INET, SOCK_STREAM},
    {"inet6", 0, SYS_socket, AF_INET6, SOCK_DGRAM},
    {"netlink route", 0, SYS_socket, AF_NETLINK, SOCK_RAW, 0},
    {"netlink audit", EPROTONOSUPPORT, SYS_socket, AF_NETLINK, SOCK_RAW, 9},
    {"ax25", EAFNOSUPPORT, SYS_socket, 3, SOCK_DGRAM},
    {"packet", EAFNOSUPPORT, SYS_socket, AF_PACKET, SOCK_RAW},
    {"alg", EAFNOSUPPORT, SYS_socket, AF_ALG, SOCK_SEQPACKET},
    {"vsock", EAFNOSUPPORT, SYS_socket, AF_VSOCK, SOCK_STREAM},
    {"xdp", EAFNOSUPPORT, SYS_socket, AF_XDP, SOCK_RAW},
    {"tiocsti", EPERM, SYS_ioctl, 0, 0x5412},
    {"tiocsti, high bits", EPERM, SYS_ioctl, 0, 0x100005412},
    {"mknod block", EPERM, SYS_mknodat, -1, (long)"x", S_IFBLK | 0600},
    {"mknod fifo", EBADF, SYS_mknodat, -1, (long)"x", S_IFIFO | 0600},
    /* The pointers are wrong: only a call that the kernel does not see succeeds. */
    {"setrlimit core", 0, SYS_setrlimit, RLIMIT_CORE, 8},
    {"setrlimit other", EFAULT, SYS_setrlimit, RLIMIT_NOFILE, 8},
    {"prlimit core", 0, SYS_prlimit64, 0, RLIMIT_CORE, 8},
    {"prlimit core, high bits", 0, SYS_prlimit64, 0, 0x100000000 + RLIMIT_CORE, 8},
    {"prlimit core, and the old", EPERM, SYS_prlimit64, 0, RLIMIT_CORE, 8, 8},
    {"prlimit other", EFAULT, SYS_prlimit64, 0, RLIMIT_NOFILE, 8},
    {"prlimit of pid 1", EPERM, SYS_prlimit64, 1, RLIMIT_CPU, 8},
    {"statmount", ENOSYS, 457},
    {"unborn", ENOSYS, 999},
#ifdef __x86_64__
    {"x32 getpid", ENOSYS, 0x40000000 + SYS_getpid},
#endif
};

/* Runs in a child: the index of the first wrong row + 1, or 0. */
static int check_rows(const struct sock_fprog *program)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, program))
        return 255;
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        errno = 0;
        long r = syscall(rows[i].nr, rows[i].a, rows[i].b, rows[i].c, rows[i].d);
        if ((r < 0 ? errno : 0) != rows[i].expected)
            return (int)i + 1;
    }
    return 0;
}

static void test_rows(void)
{
    g_autoptr(GError) error = NULL;
    int fd = sp_seccomp_container_new(&error);
    g_assert_no_error(error);
    struct sock_filter code[BPF_MAXINSNS];
    ssize_t n = pread(fd, code, sizeof code, 0);
    g_assert_cmpint(n, >, 0);
    g_assert_cmpint(n % (ssize_t)sizeof code[0], ==, 0);
    g_test_message("%d instructions", (int)(n / (ssize_t)sizeof code[0]));
    g_assert_cmpint(pwrite(fd, code, 8, 0), ==, -1); /* sealed */
    close(fd);
    struct sock_fprog program = {.len = (unsigned short)((size_t)n / sizeof code[0]),
                                 .filter = code};
    pid_t pid = fork();
    if (pid == 0)
        _exit(check_rows(&program));
    int status = 0;
    waitpid(pid, &status, 0);
    g_assert_true(WIFEXITED(status));
    int wrong = WEXITSTATUS(status);
    g_assert_cmpint(wrong, !=, 255);
    g_assert_cmpstr(wrong ? rows[wrong - 1].name : "all right", ==, "all right");
}

#ifdef __x86_64__
/* A 32-bit call (int 0x80) has other numbers: 20 is getpid there. */
static void test_foreign_architecture(void)
{
    int fd = sp_seccomp_container_new(NULL);
    struct sock_filter code[BPF_MAXINSNS];
    ssize_t n = pread(fd, code, sizeof code, 0);
    close(fd);
    struct sock_fprog program = {.len = (unsigned short)((size_t)n / sizeof code[0]),
                                 .filter = code};
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
        long r = 20;
        __asm__ volatile("int $0x80" : "+a"(r) : : "memory");
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    /* SIGSYS by the filter, or SIGSEGV where the kernel has no 32-bit calls at all. */
    g_assert_true(WIFSIGNALED(status));
}
#endif

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/seccomp/rows", test_rows);
#ifdef __x86_64__
    g_test_add_func("/seccomp/foreign_architecture", test_foreign_architecture);
#endif
    return g_test_run();
}
