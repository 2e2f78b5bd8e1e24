#include "agent.h"
#include "link.h"
#include "restored.h"
#include "session.h"
#include "spawn.h"
#include "vm_init.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EVENTS_PER_TURN 32
#define REAPED_PER_TURN 256 /* a flood of dying orphans must not starve the link */
#define CLOEXEC_ALL 4u      /* CLOSE_RANGE_CLOEXEC, since Linux 5.11 */

/* The one instance: in .bss, so that its buffers cost memory only when they are used. */
static struct agent the_agent;

uint64_t agent_clock_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

uint64_t agent_active_us(const struct agent *a)
{
    return (a->held ? a->held_since_us : agent_clock_us()) - a->held_total_us;
}

void agent_fatal(const struct agent *a, const char *what)
{
    char line[256];
    int len = snprintf(line, sizeof line, "space-agent: %s: %s\n", what, strerror(errno));
    if (len > 0)
        (void)!write(STDERR_FILENO, line,
                     (size_t)len < sizeof line ? (size_t)len : sizeof line - 1);
    if (a->is_vm)
        vm_power_off();
    _exit(70); /* EX_SOFTWARE */
}

bool agent_watch(struct agent *a, int op, int fd, uint32_t events, enum watch_kind kind,
                 uint32_t slot, uint32_t generation)
{
    struct epoll_event event = {
        .events = events,
        .data.u64 = (uint64_t)kind | (uint64_t)slot << 8 | (uint64_t)generation << 32,
    };
    return epoll_ctl(a->epoll_fd, op, fd, &event) == 0;
}

/* The value of "--name=<descriptor>"; -1 when text is another option. */
static int fd_option(const char *text, const char *name)
{
    size_t len = strlen(name);
    char *end;
    if (strncmp(text, name, len) != 0)
        return -1;
    long fd = strtol(text + len, &end, 10);
    return *end == '\0' && end > text + len && fd >= 0 && fd < 1024 ? (int)fd : -1;
}

static void parse_options(struct agent *a, int argc, char **argv)
{
    a->listen_fd = a->cgroup_fd = a->oom_fd = a->random_fd = a->null_fd = -1;
    for (int i = 1; i < argc; i++) {
        int *at = NULL, fd;
        if ((fd = fd_option(argv[i], "--link-fd=")) >= 0)
            at = &a->listen_fd;
        else if ((fd = fd_option(argv[i], "--cgroup-fd=")) >= 0)
            at = &a->cgroup_fd;
        else if ((fd = fd_option(argv[i], "--oom-fd=")) >= 0)
            at = &a->oom_fd;
        if (at) {
            *at = fd;
        } else if (!a->is_init) { /* the kernel hands its own unknown parameters to init */
            errno = EINVAL;
            agent_fatal(a, argv[i]);
        }
    }
    a->is_vm = a->listen_fd < 0 && a->is_init;
    if (a->listen_fd < 0 && !a->is_init) {
        errno = EINVAL;
        agent_fatal(a, "--link-fd=<listening socket> is missing");
    }
}

/* 0, 1 and 2 must be taken: a pipe end with such a number would be lost in a child. */
static void fill_standard_fds(void)
{
    while (fcntl(STDERR_FILENO, F_GETFD) < 0) {
        int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (fd < 0 || fd > STDERR_FILENO) {
            if (fd > STDERR_FILENO)
                close(fd);
            return;
        }
    }
}

static void lower_oom_score(struct agent *a)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    a->oom_adjusted = write(fd, "-1000", 5) == 5;
    close(fd);
}

/* Root of the sandbox may not ptrace us or see our memory and files: to that end we are not
 * dumpable. Where the launcher has given us a capability that nobody else in the sandbox has, that
 * alone refuses it (ptrace(2), "Ptrace access mode checking": all our permitted capabilities must
 * be the caller's as well), and we stay dumpable, which CRIU asks of a process that it has restored
 * once before. */
void agent_guard(struct agent *a)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};
    a->guarded = !a->is_vm && syscall(SYS_capget, &head, data) == 0 &&
                 (data[CAP_TO_INDEX(SPAWN_GUARD_CAP)].permitted & CAP_TO_MASK(SPAWN_GUARD_CAP)) &&
                 (data[CAP_TO_INDEX(CAP_SETPCAP)].effective & CAP_TO_MASK(CAP_SETPCAP));
    prctl(PR_SET_DUMPABLE, a->guarded ? 1 : 0);
}

static void start_up(struct agent *a)
{
    signals_reset();
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL); /* children unblock; faults still end us */
    umask(022);
    if (chdir("/") < 0)
        agent_fatal(a, "chdir /");
    fill_standard_fds();
    syscall(SYS_close_range, 3u, ~0u, CLOEXEC_ALL);
    agent_guard(a);
    if (!a->is_init)
        prctl(PR_SET_CHILD_SUBREAPER, 1);
    lower_oom_score(a);
    if (getrandom(a->instance, sizeof a->instance, GRND_NONBLOCK) < 0)
        memcpy(a->instance, &(uint64_t){agent_clock_us()}, sizeof(uint64_t));

    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    a->signal_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    a->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (a->signal_fd < 0 || a->epoll_fd < 0 ||
        !agent_watch(a, EPOLL_CTL_ADD, a->signal_fd, EPOLLIN, WATCH_SIGNALS, 0, 0))
        agent_fatal(a, "event loop");
    if (a->listen_fd >= 0 &&
        (fcntl(a->listen_fd, F_SETFL, O_NONBLOCK) < 0 ||
         !agent_watch(a, EPOLL_CTL_ADD, a->listen_fd, EPOLLIN, WATCH_LISTENER, 0, 0)))
        agent_fatal(a, "link socket");
    restored_init(a);
    a->pool.max = AGENT_RINGS_BYTES;
    a->now_ms = agent_active_us(a) / 1000;
}

/* Reaps what has ended. true: there may be more. */
static bool reap(struct agent *a)
{
    struct signalfd_siginfo info;
    (void)!read(a->signal_fd, &info, sizeof info); /* tells only that it is time to look */
    for (int i = 0; i < REAPED_PER_TURN; i++) {
        int status;
        struct rusage usage;
        pid_t pid = wait4(-1, &status, WNOHANG, &usage);
        if (pid <= 0)
            return false;
        session_child_ended(a, pid, status, &usage);
    }
    return true;
}

static void dispatch(struct agent *a, const struct epoll_event *event, bool *ret_reap)
{
    enum watch_kind kind = (enum watch_kind)(event->data.u64 & 0xff);
    uint32_t slot = (uint32_t)(event->data.u64 >> 8) & 0xffffffu;
    uint32_t generation = (uint32_t)(event->data.u64 >> 32);
    switch (kind) {
    case WATCH_SIGNALS:
        *ret_reap = true;
        break;
    case WATCH_LISTENER:
        link_accept(a);
        break;
    case WATCH_LINK:
        link_ready(a, event->events);
        break;
    case WATCH_STDOUT:
    case WATCH_STDERR:
    case WATCH_STDIN:
        session_ready(a, kind, slot, generation);
        break;
    }
}

static _Noreturn void run(struct agent *a)
{
    bool reap_left = false;
    for (;;) {
        struct epoll_event events[EVENTS_PER_TURN];
        int timeout = a->work_left || reap_left ? 0 : session_next_timer_ms(a);
        int count = epoll_wait(a->epoll_fd, events, EVENTS_PER_TURN, timeout);
        if (count < 0 && errno != EINTR)
            agent_fatal(a, "epoll_wait");
        a->now_ms = agent_active_us(a) / 1000;
        for (int i = 0; i < count; i++)
            dispatch(a, &events[i], &reap_left);
        if (reap_left) /* after the pipes: what a child wrote comes before its end */
            reap_left = reap(a);
        session_run_timers(a);
        link_service(a);
        if (a->tidy_due) /* after the answers are on their way */
            session_tidy(a);
    }
}

int main(int argc, char **argv)
{
    struct agent *a = &the_agent;
    if (argc == 2 &&
        strcmp(argv[1], "--ready") == 0) /* proof that commands run: agent-protocol.md §7 */
        return 0;
    a->is_init = getpid() == 1;
    parse_options(a, argc, argv);
    link_init(&a->link);
    int port = a->is_vm ? vm_init(a) : -1;
    start_up(a);
    if (port >= 0)
        link_use_port(a, port);
    run(a);
}
