#include "spawn.h"

#include "os/raw_syscall.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define STACK_BYTES (64u * 1024u)
#define EXEC_DEADLINE_MS                                                                           \
    60000u /* an emulated guest among fifty may need ten seconds for an execve */
#define RESUME_MS 10
#define CANDIDATE_BYTES 4352u      /* PATH_MAX, and the longest file name */
#define SIGNAL_SET_BYTES 8u        /* the kernel's sigset_t */
#define INTO_CGROUP 0x200000000ull /* CLONE_INTO_CGROUP, since Linux 5.7 */

/* struct clone_args of clone3(2); the libcs' headers do not have all of it. */
struct clone3_args {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
        set_tid_size, cgroup;
};

/* Shared between us and the child; the child writes stage and error, the kernel clears `alive`
 * (and wakes us) when the child leaves our memory by execve or exit: CLONE_CHILD_CLEARTID. */
struct child {
    const struct spawn_request *request;
    _Atomic uint32_t alive;
    bool by_clone; /* not by clone3: the group is not joined */
    enum spawn_stage stage;
    int error;
    char candidate[CANDIDATE_BYTES];
};

/* The child and we run at the same time in one memory, errno included: what may overlap uses
 * sp_raw(), whose results are the kernel's own. ASan must not instrument what runs on the child's
 * own stack. */
#define IN_CHILD __attribute__((no_sanitize("address", "undefined")))

IN_CHILD static _Noreturn void child_fail(struct child *c, enum spawn_stage stage, int error)
{
    c->stage = stage;
    c->error = error;
    sp_raw(SYS_exit_group, 127);
    __builtin_unreachable();
}

/* The dispositions are the defaults already (signals_reset() at our start). */
IN_CHILD static void child_signals(void)
{
    const uint64_t none = 0;
    sp_raw(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, SIGNAL_SET_BYTES);
}

IN_CHILD static void child_write_file(int dir_fd, const char *name, const char *text)
{
    long fd = sp_raw(SYS_openat, dir_fd, name, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    sp_raw(SYS_write, fd, text, 1);
    sp_raw(SYS_close, fd);
}

/* Groups, and the user for access to files: enough for chdir, and no other process of the user may
 * send us signals yet. */
IN_CHILD static void child_groups(struct child *c)
{
    const struct account *account = c->request->account;
    long r = sp_raw(SYS_setgroups, account->group_count, account->groups);
    if (r >= 0)
        r = sp_raw(SYS_setresgid, account->gid, account->gid, account->gid);
    if (r < 0)
        child_fail(c, SPAWN_USER, (int)-r);
    sp_raw(SYS_setfsuid, account->uid);
}

/* The last thing before execve: a process of the same user may stop us from here on. */
IN_CHILD static void child_user(struct child *c)
{
    uid_t uid = c->request->account->uid;
    long r = sp_raw(SYS_setresuid, uid, uid, uid);
    if (r < 0)
        child_fail(c, SPAWN_USER, (int)-r);
}

/* The launcher's filter lets the agent use clone3, which cannot be filtered by its flags, because
 * CLONE_INTO_CGROUP needs it. For the programs it does not exist: libcs fall back to clone. */
IN_CHILD static void child_deny_clone3(struct child *c)
{
#if defined(__x86_64__)
    const uint32_t arch = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
    const uint32_t arch = AUDIT_ARCH_AARCH64;
#else
#error "say which AUDIT_ARCH this is"
#endif
    const struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, arch, 0, 2), /* others: the launcher's filter */
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (ENOSYS & SECCOMP_RET_DATA)),
    };
    const struct sock_fprog program = {sizeof code / sizeof code[0], (struct sock_filter *)code};
    long r = sp_raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
    if (r < 0)
        child_fail(c, SPAWN_SETUP, (int)-r);
}

/* Whether a path that execve called missing is there: then its interpreter is what is missing. */
IN_CHILD static int exec_error(const char *path, int error)
{
    if (error == ENOENT && sp_raw(SYS_faccessat, AT_FDCWD, path, F_OK) == 0)
        return ENOEXEC;
    return error;
}

/* Tries the program in every directory of PATH, as execvp(3) does, but never gives it to a shell.
 */
IN_CHILD static _Noreturn void child_exec(struct child *c)
{
    const struct exec_plan *plan = c->request->plan;
    const char *name = plan->argv[0];
    size_t name_len = 0;
    bool slash = false;
    for (; name[name_len]; name_len++)
        slash |= name[name_len] == '/';
    if (slash) {
        long r = sp_raw(SYS_execve, name, plan->argv, plan->envp);
        child_fail(c, SPAWN_EXEC, exec_error(name, (int)-r));
    }
    int error = ENOENT;
    const char *dir = plan->path ? plan->path : EXEC_DEFAULT_PATH;
    for (bool more = true; more;) {
        size_t len = 0;
        while (dir[len] && dir[len] != ':')
            len++;
        more = dir[len] == ':';
        if (len + name_len + 2 <= CANDIDATE_BYTES) {
            size_t at = 0;
            for (size_t i = 0; i < len; i++)
                c->candidate[at++] = dir[i];
            if (len > 0) /* an empty entry is the current directory */
                c->candidate[at++] = '/';
            for (size_t i = 0; i <= name_len; i++)
                c->candidate[at++] = name[i];
            long r = sp_raw(SYS_execve, c->candidate, plan->argv, plan->envp);
            int failed = exec_error(c->candidate, (int)-r);
            if (failed == EACCES || failed == ENOEXEC)
                error = failed; /* found, but cannot be run: go on looking */
            else if (failed != ENOENT && failed != ENOTDIR && failed != ELOOP &&
                     failed != ENAMETOOLONG)
                child_fail(c, SPAWN_EXEC, failed);
        }
        dir += len + 1;
    }
    child_fail(c, SPAWN_EXEC, error);
}

IN_CHILD static void child_run(void *argument)
{
    struct child *c = argument;
    const struct spawn_request *request = c->request;
    if (c->by_clone && request->group_fd >= 0)
        child_write_file(request->group_fd, "cgroup.procs", "0");
    if (request->reset_oom)
        child_write_file(AT_FDCWD, "/proc/self/oom_score_adj", "0");
    long r = sp_raw(SYS_setsid);
    for (int i = 0; i < 3 && r >= 0; i++) /* the copies lose close-on-exec */
        r = sp_raw(SYS_dup3, request->fds[i], i, 0);
    if (r >= 0 && request->terminal)
        r = sp_raw(SYS_ioctl, 0, TIOCSCTTY, 0);
    if (r < 0)
        child_fail(c, SPAWN_SETUP, (int)-r);
    child_signals();
    /* From the bounding set: an execve as root would bring it back. Another user's takes all away. */
    r = request->drop_guard ? sp_raw(SYS_prctl, PR_CAPBSET_DROP, SPAWN_GUARD_CAP, 0, 0, 0) : 0;
    if (r < 0)
        child_fail(c, SPAWN_SETUP, (int)-r);
    child_groups(c);
    r = sp_raw(SYS_chdir, request->plan->cwd);
    if (r < 0 && request->plan->cwd_is_home)
        r = sp_raw(SYS_chdir, "/");
    if (r < 0)
        child_fail(c, SPAWN_CWD, (int)-r);
    r = sp_raw(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (r < 0)
        child_fail(c, SPAWN_SETUP, (int)-r);
    if (request->deny_clone3)
        child_deny_clone3(c);
    child_user(c);
    child_exec(c);
}

void signals_reset(void)
{
    /* The kernel's struct sigaction is four words on every architecture we build for; zero is
     * SIG_DFL. The raw call, since libc keeps its hands off the signals of its own threads. */
    const unsigned long action[4] = {0};
    for (int i = 1; i <= 64; i++)
        syscall(SYS_rt_sigaction, i, action, NULL, SIGNAL_SET_BYTES);
}

/* The same for clone(3) of libc. */
IN_CHILD static int child_main(void *argument)
{
    child_run(argument);
    return 127;
}

static pid_t clone_child(struct child *c, uint8_t *stack)
{
    int group_fd = c->request->group_fd;
    struct clone3_args args = {
        .flags = CLONE_VM | CLONE_CHILD_CLEARTID | (group_fd >= 0 ? INTO_CGROUP : 0),
        .child_tid = (uint64_t)(uintptr_t)&c->alive,
        .exit_signal = SIGCHLD,
        .stack = (uint64_t)(uintptr_t)stack,
        .stack_size = STACK_BYTES,
        .cgroup = group_fd >= 0 ? (uint64_t)group_fd : 0,
    };
    long pid = sp_raw_clone3(&args, sizeof args, child_run, c);
    if (pid > 0)
        return (pid_t)pid;
    if (pid == -EAGAIN || pid == -ENOMEM) {
        errno = (int)-pid;
        return -1;
    }
    /* An old kernel, a filter that hides clone3, or a group that takes no process. */
    c->by_clone = true;
    return clone(child_main, stack + STACK_BYTES, CLONE_VM | CLONE_CHILD_CLEARTID | SIGCHLD, c,
                 NULL, NULL, &c->alive);
}

/* false: the child was still in our memory at the deadline. Meanwhile a child that a hostile
 * process has stopped is set going again. */
static bool wait_gone(struct child *c, pid_t pid)
{
    const struct timespec step = {.tv_nsec = RESUME_MS * 1000000L};
    uint64_t until_us = agent_clock_us() + EXEC_DEADLINE_MS * 1000ull;
    while (c->alive) {
        /* Not FUTEX_PRIVATE: the kernel's wake at the end of a task is not private either. */
        if (sp_raw(SYS_futex, &c->alive, FUTEX_WAIT, 1, &step) == -ETIMEDOUT && c->alive) {
            if (agent_clock_us() >= until_us)
                return false;
            kill(pid, SIGCONT);
        }
    }
    return true;
}

struct spawn_result spawn_child(void **block, const struct spawn_request *request)
{
    struct spawn_result result = {.stage = SPAWN_CLONE};
    if (!*block) {
        void *fresh = mmap(NULL, STACK_BYTES + sizeof(struct child), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (fresh == MAP_FAILED) {
            result.error = errno;
            return result;
        }
        *block = fresh;
    }
    struct child *c = (struct child *)(void *)((uint8_t *)*block + STACK_BYTES);
    c->request = request;
    c->by_clone = false;
    c->stage = 0;
    c->error = 0;
    c->alive = 1;
    result.pid = clone_child(c, *block);
    if (result.pid < 0) {
        result.error = errno;
        result.pid = 0;
    } else if (!wait_gone(c, result.pid)) {
        kill(result.pid, SIGKILL);
        result.stage = SPAWN_STUCK;
        result.error = ETIMEDOUT;
        *block = NULL; /* the child may still run on it: it is lost */
    } else {
        result.stage = c->stage;
        result.error = c->error;
    }
    return result;
}
