/* The worker's side of the launcher. */
#include "driver/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "driver/launch_wire.h"
#include "os/fdpass.h"

#define STOP_TIMEOUT_MS 2000

extern char **environ;

struct sp_launcher {
    char *self_exe;
    /* Guards the rest. Held across a whole request: the launcher does one at a time anyway, and
     * every wait under it has a deadline. */
    GMutex lock;
    int socket; /* -1: down */
    pid_t pid;
    uint32_t serial;
};

static int spawn_process(const char *self_exe, int socket, pid_t *ret_pid)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attr);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&files, socket, SP_LAUNCHER_FD);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    char *argv[] = {(char *)"space", (char *)"launcher", NULL};
    int err = posix_spawn(ret_pid, self_exe, &files, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    return err;
}

/* Closes the socket, which ends an idle launcher, and reaps it; kills it when it does not end. */
static void take_down(struct sp_launcher *launcher, bool kill_now)
{
    if (launcher->socket >= 0)
        close(launcher->socket);
    launcher->socket = -1;
    if (!launcher->pid)
        return;
    if (kill_now)
        kill(launcher->pid, SIGKILL);
    int64_t end = sp_time_monotonic_ms() + STOP_TIMEOUT_MS;
    /* It is our child: the pid is not reused before it is reaped here. */
    while (waitpid(launcher->pid, NULL, WNOHANG) == 0) {
        if (sp_time_monotonic_ms() > end) {
            kill(launcher->pid, SIGKILL);
            waitpid(launcher->pid, NULL, 0);
            break;
        }
        poll(NULL, 0, 1);
    }
    launcher->pid = 0;
}

static bool bring_up(struct sp_launcher *launcher, GError **error)
{
    if (launcher->socket >= 0) {
        /* Between requests nothing may come; a readable socket is the end of the launcher. */
        struct pollfd p = {.fd = launcher->socket, .events = POLLIN};
        if (poll(&p, 1, 0) == 0)
            return true;
        take_down(launcher, true);
    }
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "socketpair");
        return false;
    }
    pid_t pid = 0;
    int err = spawn_process(launcher->self_exe, pair[1], &pid);
    close(pair[1]);
    if (err) {
        close(pair[0]);
        sp_error_set_errno(error, SP_ERROR_INTERNAL, err, "start %s launcher", launcher->self_exe);
        return false;
    }
    launcher->socket = pair[0];
    launcher->pid = pid;
    return true;
}

struct sp_launcher *sp_launcher_start(const char *self_exe, GError **error)
{
    struct sp_launcher *launcher = g_new0(struct sp_launcher, 1);
    launcher->self_exe = g_strdup(self_exe);
    launcher->socket = -1;
    g_mutex_init(&launcher->lock);
    if (bring_up(launcher, error))
        return launcher;
    sp_launcher_stop(launcher);
    return NULL;
}

void sp_launcher_stop(struct sp_launcher *launcher)
{
    if (!launcher)
        return;
    take_down(launcher, false);
    g_mutex_clear(&launcher->lock);
    g_free(launcher->self_exe);
    g_free(launcher);
}

pid_t sp_launcher_pid(struct sp_launcher *launcher)
{
    g_mutex_lock(&launcher->lock);
    pid_t pid = launcher->pid;
    g_mutex_unlock(&launcher->lock);
    return pid;
}

/* Waits for the reply; *ret_fd is the fd that came with it, or -1. */
static bool receive(struct sp_launcher *launcher, struct sp_launch_reply *ret_reply, int *ret_fd,
                    GError **error)
{
    int fds[SP_FDPASS_MAX];
    unsigned n_fds = 0;
    size_t len = 0;
    if (!sp_fdpass_receive(launcher->socket, ret_reply, sizeof *ret_reply, &len, fds, &n_fds,
                           SP_LAUNCH_TIMEOUT_MS, error))
        return false;
    for (unsigned i = 1; i < n_fds; i++)
        close(fds[i]);
    *ret_fd = n_fds ? fds[0] : -1;
    bool complete = len == sizeof *ret_reply && ret_reply->serial == launcher->serial &&
                    (ret_reply->failed_errno || n_fds);
    if (complete)
        return true;
    if (*ret_fd >= 0)
        close(*ret_fd);
    g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "%s",
                len ? "the launcher's answer makes no sense" : "the launcher has ended");
    return false;
}

/* One request and its reply. A launcher that fails in between is taken down; a next call starts
 * another. Nothing is repeated here: whether the process was made is not known, its cgroup tells.
 */
static bool exchange(struct sp_launcher *launcher, GByteArray *message, const int *fds,
                     unsigned n_fds, struct sp_launch_reply *ret_reply, int *ret_fd, GError **error)
{
    g_mutex_lock(&launcher->lock);
    bool ok = bring_up(launcher, error);
    if (ok) {
        struct sp_launch_request *request = (struct sp_launch_request *)(void *)message->data;
        request->serial = ++launcher->serial;
        ok = sp_fdpass_send(launcher->socket, message->data, message->len, fds, n_fds,
                            SP_LAUNCH_TIMEOUT_MS, error) &&
             receive(launcher, ret_reply, ret_fd, error);
        if (!ok)
            take_down(launcher, true);
    }
    g_mutex_unlock(&launcher->lock);
    return ok;
}

bool sp_launcher_spawn(struct sp_launcher *launcher, const struct sp_plan *plan, pid_t *ret_pid,
                       int *ret_pidfd, GError **error)
{
    struct sp_launch_request request = {.kind = SP_LAUNCH_KIND_SPAWN};
    g_autoptr(GByteArray) message = g_byte_array_sized_new(4096);
    g_autoptr(GByteArray) encoded = g_byte_array_sized_new(4096);
    int fds[SP_PLAN_MAX_FDS];
    unsigned n_fds = 0;
    if (!sp_plan_encode(plan, encoded, fds, &n_fds, error))
        return false;
    g_byte_array_append(message, (const guint8 *)&request, sizeof request);
    g_byte_array_append(message, encoded->data, encoded->len);
    struct sp_launch_reply reply;
    int pidfd = -1;
    if (!exchange(launcher, message, fds, n_fds, &reply, &pidfd, error)) {
        g_prefix_error(error, "%s: ", sp_plan_name(plan));
        return false;
    }
    if (reply.failed_errno) {
        g_autofree char *step = sp_plan_describe_step(plan, (unsigned)reply.failed_place);
        sp_error_set_errno(error, SP_ERROR_INTERNAL, reply.failed_errno, "%s: %s",
                           sp_plan_name(plan), step);
        return false;
    }
    *ret_pid = reply.pid;
    *ret_pidfd = pidfd;
    return true;
}

int sp_launcher_user_namespace(struct sp_launcher *launcher, uint32_t host_first, uint32_t count,
                               GError **error)
{
    struct sp_launch_request request = {
        .kind = SP_LAUNCH_KIND_USER_NAMESPACE, .first = host_first, .count = count};
    g_autoptr(GByteArray) message = g_byte_array_new();
    g_byte_array_append(message, (const guint8 *)&request, sizeof request);
    struct sp_launch_reply reply;
    int fd = -1;
    if (!exchange(launcher, message, NULL, 0, &reply, &fd, error))
        return -1;
    if (!reply.failed_errno)
        return fd;
    sp_error_set_errno(error, SP_ERROR_INTERNAL, reply.failed_errno, "make a user namespace");
    return -1;
}
