#include "cli/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/time.h"
#include "cli/log_file.h"
#include "os/cleanup.h"

/* Back-off of restarts: none the first time, then from the first pause on doubling to the last. */
#define FIRST_PAUSE_MS 50
#define MAX_PAUSE_MS 5000
#define GOOD_LIFE_MS 1000 /* a daemon that served this long was sound: back-off begins anew */
#define EARLIER_DAEMON_MS 20000
#define ROTATE_EVERY_MS 2000

struct daemon {
    char *name;
    char **argv;
    json_t *secrets;
    pid_t pid; /* 0: not running */
    int64_t started_ms;
    int64_t start_at_ms;
    int64_t pause_ms;
    unsigned deaths; /* since the start, while not yet ready */
};

struct sp_supervisor {
    const struct sp_state_dir *state;
    bool log_to_stderr;
    bool ready;
    GPtrArray *daemons; /* of struct daemon * */
    const struct daemon *stuck;
    int signal_fd;
    int life_pipe[2]; /* [1] stays ours alone */
    int64_t rotate_at_ms;
    sigset_t signals;
};

static void free_daemon(void *data)
{
    struct daemon *d = data;
    g_free(d->name);
    g_strfreev(d->argv);
    json_decref(d->secrets);
    g_free(d);
}

struct sp_supervisor *sp_supervisor_new(const struct sp_state_dir *state, bool log_to_stderr)
{
    struct sp_supervisor *s = g_new0(struct sp_supervisor, 1);
    s->state = state;
    s->log_to_stderr = log_to_stderr;
    s->daemons = g_ptr_array_new_with_free_func(free_daemon);
    sigemptyset(&s->signals);
    sigaddset(&s->signals, SIGCHLD);
    sigaddset(&s->signals, SIGTERM);
    sigaddset(&s->signals, SIGINT);
    sigaddset(&s->signals, SIGHUP);
    sigprocmask(SIG_BLOCK, &s->signals, NULL);
    s->signal_fd = signalfd(-1, &s->signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s->signal_fd < 0 || pipe2(s->life_pipe, O_CLOEXEC) != 0)
        g_error("cannot supervise: %s", g_strerror(errno));
    return s;
}

void sp_supervisor_free(struct sp_supervisor *s)
{
    close(s->signal_fd);
    close(s->life_pipe[0]);
    close(s->life_pipe[1]);
    g_ptr_array_unref(s->daemons);
    g_free(s);
}

void sp_supervisor_add(struct sp_supervisor *s, const char *name, char **arguments, json_t *secrets)
{
    struct daemon *d = g_new0(struct daemon, 1);
    d->name = g_strdup(name);
    g_autoptr(GPtrArray) argv = g_ptr_array_new();
    g_ptr_array_add(argv, g_strdup("space"));
    g_ptr_array_add(argv, g_strdup(name));
    for (; *arguments; arguments++)
        g_ptr_array_add(argv, g_strdup(*arguments));
    g_ptr_array_add(argv, NULL);
    d->argv = (char **)g_ptr_array_free(g_steal_pointer(&argv), FALSE);
    d->secrets = json_incref(secrets);
    g_ptr_array_add(s->daemons, d);
}

/* A pipe that holds the secrets and is closed for writing; -1 on failure. They fit its buffer. */
static int secrets_pipe(const struct daemon *d, GError **error)
{
    g_autofree char *text = sp_json_dump(d->secrets);
    size_t len = strlen(text);
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "pipe");
        return -1;
    }
    ssize_t n = write(fds[1], text, len);
    close(fds[1]);
    explicit_bzero(text, len);
    if (n == (ssize_t)len)
        return fds[0];
    close(fds[0]);
    g_set_error_literal(error, SP_ERROR, SP_ERROR_INTERNAL, "the secrets do not fit a pipe");
    return -1;
}

struct child_fds {
    int secrets, life, log, lock;
};

/* In the child, between fork and exec: only what is async-signal-safe. Descriptors are first moved
 * out of the way, so that no target overwrites a source. */
static void become_daemon(const struct sp_supervisor *s, const struct daemon *d, const char *exe,
                          const struct child_fds *fds)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int secrets = fcntl(fds->secrets, F_DUPFD_CLOEXEC, 10);
    int life = fcntl(fds->life, F_DUPFD_CLOEXEC, 10);
    int log = fds->log >= 0 ? fcntl(fds->log, F_DUPFD_CLOEXEC, 10) : STDERR_FILENO;
    int lock = fcntl(fds->lock, F_DUPFD, 10); /* inherited: held as long as the daemon lives */
    if (null < 0 || secrets < 0 || life < 0 || log < 0 || lock < 0)
        _exit(127);
    dup2(null, STDIN_FILENO);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    dup2(secrets, SP_DAEMON_SECRETS_FD);
    dup2(life, SP_DAEMON_PARENT_FD);
    setsid(); /* a ^C at the terminal is for `space up`, which stops its daemons in order */
    sigprocmask(SIG_UNBLOCK, &s->signals, NULL);
    execv(exe, d->argv);
    _exit(127);
}

static char *own_program(void)
{
    g_autofree char *exe = g_file_read_link("/proc/self/exe", NULL);
    bool there = exe && g_file_test(exe, G_FILE_TEST_IS_EXECUTABLE);
    return there ? g_steal_pointer(&exe) : g_strdup("/proc/self/exe");
}

static bool start_daemon(struct sp_supervisor *s, struct daemon *d, GError **error)
{
    g_autofree char *exe = own_program();
    SP_CLEANUP(sp_close_fdp)
    int lock = sp_state_dir_lock_daemon(s->state, d->name, EARLIER_DAEMON_MS, error);
    if (lock < 0)
        return false;
    SP_CLEANUP(sp_close_fdp) int log = -1;
    if (!s->log_to_stderr && (log = sp_log_file_open(s->state, d->name, error)) < 0)
        return false;
    SP_CLEANUP(sp_close_fdp) int secrets = secrets_pipe(d, error);
    if (secrets < 0)
        return false;
    struct child_fds fds = {secrets, s->life_pipe[0], log, lock};
    pid_t pid = fork();
    if (pid == 0)
        become_daemon(s, d, exe, &fds);
    if (pid < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "fork");
        return false;
    }
    d->pid = pid;
    d->started_ms = sp_time_monotonic_ms();
    return true;
}

static void plan_restart(struct sp_supervisor *s, struct daemon *d)
{
    int64_t now_ms = sp_time_monotonic_ms();
    if (now_ms - d->started_ms > GOOD_LIFE_MS)
        d->pause_ms = 0;
    d->start_at_ms = now_ms + d->pause_ms;
    d->pause_ms = CLAMP(d->pause_ms * 2, FIRST_PAUSE_MS, MAX_PAUSE_MS);
    if (!s->ready && ++d->deaths >= SP_SUPERVISOR_MAX_DEATHS)
        s->stuck = d;
}

static void start_due(struct sp_supervisor *s)
{
    for (guint i = 0; i < s->daemons->len; i++) {
        struct daemon *d = s->daemons->pdata[i];
        if (d->pid || sp_time_monotonic_ms() < d->start_at_ms)
            continue;
        g_autoptr(GError) error = NULL;
        if (!start_daemon(s, d, &error)) {
            sp_log_error("a daemon cannot be started", error, "name", d->name, NULL);
            d->started_ms = sp_time_monotonic_ms();
            plan_restart(s, d);
        }
    }
}

/* Only our own daemons: `up --detach` may have other children. */
static void reap(struct sp_supervisor *s)
{
    for (guint i = 0; i < s->daemons->len; i++) {
        struct daemon *d = s->daemons->pdata[i];
        int status = 0;
        if (!d->pid || waitpid(d->pid, &status, WNOHANG) != d->pid)
            continue;
        g_autofree char *how = WIFSIGNALED(status)
                                   ? g_strdup_printf("signal %d", WTERMSIG(status))
                                   : g_strdup_printf("exit code %d", WEXITSTATUS(status));
        sp_log(SP_LOG_WARNING, "a daemon has ended; it is started again", "name", d->name, "how",
               how, NULL);
        d->pid = 0;
        plan_restart(s, d);
    }
}

static void rotate_logs(struct sp_supervisor *s)
{
    if (s->log_to_stderr || sp_time_monotonic_ms() < s->rotate_at_ms)
        return;
    s->rotate_at_ms = sp_time_monotonic_ms() + ROTATE_EVERY_MS;
    for (guint i = 0; i < s->daemons->len; i++)
        sp_log_file_rotate(s->state, ((struct daemon *)s->daemons->pdata[i])->name);
}

/* Milliseconds until something is due, at most limit_ms. */
static int next_due_ms(const struct sp_supervisor *s, int64_t limit_ms)
{
    int64_t now_ms = sp_time_monotonic_ms();
    int64_t wait_ms = s->log_to_stderr ? limit_ms : MIN(limit_ms, ROTATE_EVERY_MS);
    for (guint i = 0; i < s->daemons->len; i++) {
        const struct daemon *d = s->daemons->pdata[i];
        if (!d->pid)
            wait_ms = MIN(wait_ms, d->start_at_ms - now_ms);
    }
    return (int)CLAMP(wait_ms, 0, limit_ms);
}

/* True when one of the read signals asks us to stop. */
static bool read_signals(struct sp_supervisor *s)
{
    bool stop = false;
    struct signalfd_siginfo info;
    while (read(s->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        stop = stop || info.ssi_signo != SIGCHLD;
    return stop;
}

enum sp_supervisor_event sp_supervisor_turn(struct sp_supervisor *s, int timeout_ms)
{
    int64_t deadline_ms = sp_time_monotonic_ms() + timeout_ms;
    for (;;) {
        start_due(s);
        rotate_logs(s);
        int64_t left_ms = MAX(0, deadline_ms - sp_time_monotonic_ms());
        struct pollfd fd = {.fd = s->signal_fd, .events = POLLIN};
        if (poll(&fd, 1, next_due_ms(s, left_ms)) > 0 && read_signals(s))
            return SP_SUPERVISOR_STOP;
        reap(s);
        if (s->stuck)
            return SP_SUPERVISOR_STUCK;
        if (sp_time_monotonic_ms() >= deadline_ms)
            return SP_SUPERVISOR_TIME;
    }
}

void sp_supervisor_all_ready(struct sp_supervisor *s)
{
    s->ready = true;
}

char *sp_supervisor_last_words(const struct sp_supervisor *s)
{
    if (!s->stuck)
        return NULL;
    g_autofree char *tail = s->log_to_stderr ? NULL : sp_log_file_tail(s->state, s->stuck->name);
    return g_strdup_printf("space %s does not start%s%s", s->stuck->name, tail ? ":\n" : "",
                           tail ? tail : "");
}

static bool any_alive(struct sp_supervisor *s)
{
    bool alive = false;
    for (guint i = 0; i < s->daemons->len; i++) {
        struct daemon *d = s->daemons->pdata[i];
        if (d->pid && waitpid(d->pid, NULL, WNOHANG) == d->pid)
            d->pid = 0;
        alive = alive || d->pid;
    }
    return alive;
}

static void signal_all(struct sp_supervisor *s, int signal)
{
    for (guint i = 0; i < s->daemons->len; i++) {
        struct daemon *d = s->daemons->pdata[i];
        if (d->pid)
            kill(d->pid, signal); /* our child that we have not reaped: the pid is its own */
    }
}

void sp_supervisor_stop(struct sp_supervisor *s, int timeout_ms)
{
    signal_all(s, SIGTERM);
    int64_t deadline_ms = sp_time_monotonic_ms() + timeout_ms;
    while (any_alive(s) && sp_time_monotonic_ms() < deadline_ms) {
        struct pollfd fd = {.fd = s->signal_fd, .events = POLLIN};
        poll(&fd, 1, 100);
        read_signals(s);
    }
    if (!any_alive(s))
        return;
    sp_log(SP_LOG_WARNING, "a daemon does not stop and is killed", NULL);
    signal_all(s, SIGKILL);
    for (guint i = 0; i < s->daemons->len; i++) {
        struct daemon *d = s->daemons->pdata[i];
        if (d->pid)
            waitpid(d->pid, NULL, 0);
        d->pid = 0;
    }
}
