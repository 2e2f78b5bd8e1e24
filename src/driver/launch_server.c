/*
 * The launcher process: receives plans, makes processes, answers.
 *
 * Single-threaded, one request at a time. Children end without becoming zombies (SA_NOCLDWAIT);
 * their pidfds, which the worker holds, tell their end.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "driver/launch_child.h"
#include "driver/launch_wire.h"
#include "driver/launcher.h"
#include "driver/plan_private.h"
#include "os/fdpass.h"
#include "os/pidfd.h"
#include "os/raw_syscall.h"

#define STACK_BYTES 65536
#define SET_UP_TIMEOUT_MS 15000
#define KILL_TIMEOUT_MS 2000

struct server {
    int socket;
    char *stack; /* of the child being made; one at a time */
    char message[sizeof(struct sp_launch_request) + SP_PLAN_MAX_BYTES];
    struct sock_filter program[BPF_MAXINSNS];
};

/* clone3 with a child that waits for go. Raw, like everything until the child is done. */
static pid_t start_child(struct server *server, struct sp_launch *launch, uint64_t flags,
                         int cgroup_fd, int *ret_pidfd)
{
    struct clone_args args = {
        .flags = flags | CLONE_VM | CLONE_PIDFD | CLONE_CHILD_CLEARTID |
                 (cgroup_fd >= 0 ? CLONE_INTO_CGROUP : 0),
        .pidfd = (uintptr_t)ret_pidfd,
        .child_tid = (uintptr_t)&launch->child_tid,
        .exit_signal = SIGCHLD,
        .stack = (uintptr_t)server->stack,
        .stack_size = STACK_BYTES,
        .cgroup = cgroup_fd >= 0 ? (uint64_t)cgroup_fd : 0,
    };
    launch->child_tid = 1;
    return (pid_t)sp_raw_clone3(&args, sizeof args, sp_launch_child, launch);
}

static void set_go(struct sp_launch *launch, uint32_t go)
{
    __atomic_store_n(&launch->go, go, __ATOMIC_RELEASE);
    sp_raw(SYS_futex, &launch->go, FUTEX_WAKE, 1);
}

/* Whether the child exec'd or ended, and so left our memory, within the time. */
static bool wait_child(struct sp_launch *launch, int timeout_ms)
{
    int64_t end = sp_time_monotonic_ms() + timeout_ms;
    for (;;) {
        uint32_t tid = __atomic_load_n(&launch->child_tid, __ATOMIC_ACQUIRE);
        int64_t left = end - sp_time_monotonic_ms();
        if (!tid || left <= 0)
            return !tid;
        struct timespec t = {.tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000};
        sp_raw(SYS_futex, &launch->child_tid, FUTEX_WAIT, tid, &t);
    }
}

static long write_proc(pid_t pid, const char *file, const char *text)
{
    char path[64];
    g_snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));
    int err = errno;
    if (fd >= 0)
        close(fd);
    return n < 0 ? -err : 0;
}

/* root_too: the host's root is the id after those. */
static long map_ids(pid_t pid, uint32_t first, uint32_t count, bool root_too)
{
    char text[96];
    int n = g_snprintf(text, sizeof text, "0 %u %u\n", first, count);
    if (root_too)
        g_snprintf(text + n, sizeof text - (size_t)n, "%u 0 1\n", count);
    long r = write_proc(pid, "uid_map", text);
    return r < 0 ? r : write_proc(pid, "gid_map", text);
}

/* Reads the plan's seccomp program, so that the child finds it in memory. */
static long load_seccomp(struct server *server, const struct sp_plan *plan,
                         struct sp_launch *launch)
{
    for (unsigned i = 0; i < plan->n_steps; i++) {
        if (plan->steps[i].kind != SP_STEP_SECCOMP)
            continue;
        ssize_t n =
            pread(plan->fds[plan->steps[i].fd].fd, server->program, sizeof server->program, 0);
        if (n <= 0 || (size_t)n % sizeof server->program[0])
            return n < 0 ? -errno : -EINVAL;
        launch->program = server->program;
        launch->n_program = (uint16_t)((size_t)n / sizeof server->program[0]);
    }
    return 0;
}

static void set_failure(struct sp_launch_reply *reply, int place, long result)
{
    reply->failed_place = place;
    reply->failed_errno = (int)-result;
}

/* Ends a child that must not go on. Without success the memory stays shared with it, and the only
 * safe thing is to end this launcher. */
static void abandon(struct sp_launch *launch, int pidfd)
{
    sp_pidfd_signal(pidfd, SIGKILL, NULL);
    if (!wait_child(launch, KILL_TIMEOUT_MS))
        _exit(1);
}

static void spawn(struct server *server, const struct sp_plan *plan, struct sp_launch_reply *reply,
                  int *ret_pidfd)
{
    struct sp_launch launch = {.plan = plan, .go = SP_GO_WAIT};
    long r = load_seccomp(server, plan, &launch);
    if (r < 0) {
        set_failure(reply, SP_LAUNCH_SECCOMP_READ, r);
        return;
    }
    int pidfd = -1;
    int cgroup = plan->cgroup_dir >= 0 ? plan->fds[plan->cgroup_dir].fd : -1;
    pid_t pid = start_child(server, &launch, plan->namespaces, cgroup, &pidfd);
    if (pid < 0) {
        set_failure(reply, SP_LAUNCH_CLONE, pid);
        return;
    }
    r = plan->map_count ? map_ids(pid, plan->map_first, plan->map_count, false) : 0;
    int place = SP_LAUNCH_MAP_IDS;
    if (r >= 0) {
        set_go(&launch, SP_GO_RUN);
        if (wait_child(&launch, SET_UP_TIMEOUT_MS)) {
            place = launch.failed_errno ? launch.failed_place : SP_LAUNCH_DIED;
            r = launch.failed_errno ? -launch.failed_errno : launch.at_exec ? 0 : -ECHILD;
        } else {
            place = SP_LAUNCH_TIMEOUT;
            r = -ETIMEDOUT;
        }
    }
    if (r < 0) {
        abandon(&launch, pidfd);
        close(pidfd);
        set_failure(reply, place, r);
        return;
    }
    reply->pid = pid;
    *ret_pidfd = pidfd;
}

/* A user namespace lives as long as an fd of it: its only process can go at once. */
static void user_namespace(struct server *server, const struct sp_launch_request *request,
                           struct sp_launch_reply *reply, int *ret_fd)
{
    struct sp_launch launch = {.go = SP_GO_WAIT};
    int pidfd = -1;
    pid_t pid = start_child(server, &launch, CLONE_NEWUSER, -1, &pidfd);
    if (pid < 0) {
        set_failure(reply, SP_LAUNCH_CLONE, pid);
        return;
    }
    long r = map_ids(pid, request->first, request->count, true);
    if (r >= 0) {
        char path[64];
        g_snprintf(path, sizeof path, "/proc/%d/ns/user", (int)pid);
        *ret_fd = open(path, O_RDONLY | O_CLOEXEC);
        r = *ret_fd < 0 ? -errno : 0;
    }
    set_go(&launch, SP_GO_EXIT);
    if (!wait_child(&launch, KILL_TIMEOUT_MS))
        abandon(&launch, pidfd);
    close(pidfd);
    if (r < 0)
        set_failure(reply, SP_LAUNCH_MAP_IDS, r);
}

/* Handles one message; false at the end of the stream. */
static bool serve_one(struct server *server)
{
    int fds[SP_FDPASS_MAX];
    unsigned n_fds = 0;
    size_t len = 0;
    g_autoptr(GError) error = NULL;
    if (!sp_fdpass_receive(server->socket, server->message, sizeof server->message, &len, fds,
                           &n_fds, -1, &error) ||
        len == 0)
        return false;
    struct sp_launch_request request = {0};
    struct sp_launch_reply reply = {0};
    int answer_fd = -1;
    SP_CLEANUP(sp_plan_free_p) struct sp_plan *plan = NULL;
    if (len >= sizeof request)
        memcpy(&request, server->message, sizeof request);
    if (request.kind == SP_LAUNCH_KIND_SPAWN)
        plan = sp_plan_decode(server->message + sizeof request, len - sizeof request, fds, n_fds,
                              &error);
    if (plan)
        spawn(server, plan, &reply, &answer_fd);
    else if (request.kind == SP_LAUNCH_KIND_USER_NAMESPACE)
        user_namespace(server, &request, &reply, &answer_fd);
    else
        set_failure(&reply, SP_LAUNCH_REQUEST, -EBADMSG);
    for (unsigned i = 0; !plan && i < n_fds; i++)
        close(fds[i]);
    reply.serial = request.serial;
    bool sent = sp_fdpass_send(server->socket, &reply, sizeof reply, &answer_fd, answer_fd >= 0,
                               1000, NULL);
    if (answer_fd >= 0)
        close(answer_fd);
    return sent;
}

int sp_launcher_main(int socket_fd)
{
    prctl(PR_SET_NAME, "space-launcher");
    setsid(); /* a terminal's Ctrl-C is for the worker */
    /* The flag, unlike SIG_IGN, is not inherited over exec. */
    struct sigaction reap = {.sa_handler = SIG_DFL, .sa_flags = SA_NOCLDWAIT};
    sigaction(SIGCHLD, &reap, NULL);
    if (socket_fd > 3)
        close_range(3, (unsigned)socket_fd - 1, 0);
    close_range((unsigned)socket_fd + 1, ~0U, 0);
    fcntl(socket_fd, F_SETFD, FD_CLOEXEC);
    if (chdir("/") < 0)
        return EXIT_FAILURE;
    /* Lowest page stays unmapped: an overflow ends the process instead of writing elsewhere. */
    long page = sysconf(_SC_PAGESIZE);
    char *area =
        mmap(NULL, STACK_BYTES + (size_t)page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED || mprotect(area + page, STACK_BYTES, PROT_READ | PROT_WRITE) < 0)
        return EXIT_FAILURE;
    struct server *server = g_new0(struct server, 1);
    server->socket = socket_fd;
    server->stack = area + page;
    while (serve_one(server))
        ;
    munmap(area, STACK_BYTES + (size_t)page);
    g_free(server);
    return EXIT_SUCCESS;
}
