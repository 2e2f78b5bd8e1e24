#include "disk/program.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "os/pidfd.h"

#define LINE_MAX_BYTES 1000
#define TAIL_LINES 12
#define PROGRAM_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

/* The output of a program: the line being read, and the last lines for an error message. */
struct output {
    int fd;
    GString *line;
    GQueue tail;
    const struct sp_program *program;
};

char *sp_program_find(const char *name)
{
    char *found = g_find_program_in_path(name);
    if (found != NULL || strchr(name, '/') != NULL) {
        return found;
    }
    static const char *const folders[] = {"/usr/local/sbin", "/usr/sbin", "/sbin"};
    for (size_t i = 0; i < G_N_ELEMENTS(folders); i++) {
        char *path = g_build_filename(folders[i], name, NULL);
        if (access(path, X_OK) == 0) {
            return path;
        }
        g_free(path);
    }
    return NULL;
}

static void end_line(struct output *output)
{
    if (output->line->len == 0) {
        return;
    }
    char *text = g_utf8_make_valid(output->line->str, (gssize)output->line->len);
    g_string_truncate(output->line, 0);
    if (output->program->progress != NULL) {
        output->program->progress(output->program->user, text);
    }
    g_queue_push_tail(&output->tail, text);
    if (output->tail.length > TAIL_LINES) {
        g_free(g_queue_pop_head(&output->tail));
    }
}

/* Reads what there is; false at the end of the output. */
static bool read_output(struct output *output)
{
    char buffer[4096];
    ssize_t n = read(output->fd, buffer, sizeof(buffer));
    if (n < 0) {
        return errno == EAGAIN || errno == EINTR;
    }
    for (ssize_t i = 0; i < n; i++) {
        if (buffer[i] == '\n' || buffer[i] == '\r') {
            end_line(output);
        } else if (output->line->len < LINE_MAX_BYTES) {
            g_string_append_c(output->line, buffer[i]);
        }
    }
    return n > 0;
}

static char **make_env(const char *const *extra)
{
    char **env = g_environ_setenv(NULL, "PATH", PROGRAM_PATH, TRUE);
    env = g_environ_setenv(env, "HOME", "/root", TRUE);
    env = g_environ_setenv(env, "LC_ALL", "C.UTF-8", TRUE);
    for (size_t i = 0; extra != NULL && extra[i] != NULL; i++) {
        g_auto(GStrv) pair = g_strsplit(extra[i], "=", 2);
        if (g_strv_length(pair) == 2) {
            env = g_environ_setenv(env, pair[0], pair[1], TRUE);
        }
    }
    return env;
}

/* Starts the program with its output on a new pipe; returns the pid, or -1. */
static pid_t start(const char *path, const struct sp_program *program, int *ret_output)
{
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC) < 0) {
        return -1;
    }
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attr);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], 1);
    posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], 2);
    posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                        POSIX_SPAWN_SETSIGDEF);
    g_auto(GStrv) env = make_env(program->env);
    pid_t pid = -1;
    int failure = posix_spawn(&pid, path, &actions, &attr, (char *const *)program->argv, env);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    close(pipe_fds[1]);
    if (failure != 0) {
        close(pipe_fds[0]);
        errno = failure;
        return -1;
    }
    fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK);
    *ret_output = pipe_fds[0];
    return pid;
}

/* Reads output until the program has ended; false when it has to be ended. */
static bool follow(struct output *output, int pidfd, int64_t deadline, GError **error)
{
    GPollFD cancel = {.fd = -1};
    GCancellable *cancellable = output->program->cancellable;
    bool have_cancel = cancellable != NULL && g_cancellable_make_pollfd(cancellable, &cancel);
    bool open = true, ended = false;
    while (!ended) {
        int64_t left = deadline - sp_time_monotonic_ms();
        struct pollfd fds[] = {
            {.fd = pidfd, .events = POLLIN},
            {.fd = open ? output->fd : -1, .events = POLLIN},
            {.fd = have_cancel ? cancel.fd : -1, .events = POLLIN},
        };
        if (g_cancellable_is_cancelled(cancellable)) {
            g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "cancelled");
            break;
        }
        if (left <= 0) {
            g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "took too long");
            break;
        }
        if (poll(fds, G_N_ELEMENTS(fds), (int)MIN(left, 60000)) < 0 && errno != EINTR) {
            sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "poll");
            break;
        }
        if (open && fds[1].revents != 0) {
            open = read_output(output);
        }
        ended = fds[0].revents != 0 && fds[1].revents == 0;
    }
    if (have_cancel) {
        g_cancellable_release_fd(cancellable);
    }
    return ended;
}

static void set_status_error(GError **error, int status, GQueue *tail)
{
    GString *text = g_string_new(NULL);
    for (GList *item = tail->head; item != NULL; item = item->next) {
        g_string_append_printf(text, "%s%s", item == tail->head ? ": " : "\n", (char *)item->data);
    }
    if (WIFSIGNALED(status)) {
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "killed by signal %d%s", WTERMSIG(status),
                    text->str);
    } else {
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "exit status %d%s", WEXITSTATUS(status),
                    text->str);
    }
    g_string_free(text, TRUE);
}

static bool run_started(struct output *output, pid_t pid, GError **error)
{
    const struct sp_program *program = output->program;
    int pidfd = sp_pidfd_open(pid, error);
    bool ended = false;
    if (pidfd >= 0) {
        ended = follow(output, pidfd, sp_time_monotonic_ms() + program->timeout_ms, error);
        close(pidfd);
    }
    /* The leader is not reaped yet, so the number of its group cannot belong to somebody else. */
    kill(-pid, SIGKILL);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (!ended) {
        return false;
    }
    do {
        errno = 0;
    } while (read_output(output) && errno != EAGAIN);
    end_line(output);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        set_status_error(error, status, &output->tail);
        return false;
    }
    return true;
}

bool sp_program_run(const struct sp_program *program, GError **error)
{
    g_autofree char *path = sp_program_find(program->argv[0]);
    if (path == NULL) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "%s is not installed", program->argv[0]);
        return false;
    }
    struct output output = {.program = program, .tail = G_QUEUE_INIT};
    pid_t pid = start(path, program, &output.fd);
    if (pid < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "start %s", path);
        return false;
    }
    output.line = g_string_new(NULL);
    bool done = run_started(&output, pid, error);
    if (!done) {
        g_prefix_error(error, "%s: ", program->argv[0]);
    }
    close(output.fd);
    g_string_free(output.line, TRUE);
    g_queue_clear_full(&output.tail, g_free);
    return done;
}
