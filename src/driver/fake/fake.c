#include "driver/fake/fake.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "driver/fake/fake_private.h"
#include "os/endpoint.h"

#define START_MS 10000
#define END_MS 10000
#define CONNECT_MS 5000

/* The agent writes its names into /etc and its hooks into /run: it gets its own. $0 is the run
 * directory, $1 the agent. */
static const char script[] = "mkdir \"$0/etc\" && mount -t tmpfs none \"$0/etc\" && "
                             "cp -a /etc/. \"$0/etc/\" && mount --bind \"$0/etc\" /etc && "
                             "mount -t tmpfs -o mode=755 none /run && "
                             "exec \"$1\" --link-fd=3";

static void probe(struct sp_driver *driver, struct sp_tier_status *ret)
{
    *ret = (struct sp_tier_status){geteuid() == 0, g_strdup("fake, for tests only")};
}

static bool prepare(struct sp_driver *driver, const char *template_dir,
                    const struct sp_shape *shape, sp_progress_fn progress, void *user,
                    GError **error)
{
    return true;
}

/* Starts unshare with the socket as fd 3; 0 on failure. */
static pid_t start(const struct fake_driver *driver, const char *run_dir, int socket_fd,
                   GError **error)
{
    char *const argv[] = {(char *)"unshare",
                          (char *)"--uts",
                          (char *)"--mount",
                          (char *)"--pid",
                          (char *)"--fork",
                          (char *)"--mount-proc",
                          (char *)"--kill-child=SIGKILL",
                          (char *)"sh",
                          (char *)"-c",
                          (char *)script,
                          (char *)run_dir,
                          (char *)driver->env.agent_path,
                          NULL};
    char *const env[] = {(char *)"PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    g_autofree char *log = g_build_filename(run_dir, "agent.log", NULL);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    posix_spawn_file_actions_adddup2(&actions, socket_fd, 3);
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    /* A signal to the worker's group is not for it; and a stopped group that loses its worker, in
     * the worker's session, would get SIGHUP (setpgid(2), orphaned process groups). */
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
    pid_t pid = 0;
    int failed = posix_spawnp(&pid, argv[0], &actions, &attributes, argv, env);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (failed) {
        sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, failed, "starting unshare");
        return 0;
    }
    return pid;
}

/* Host pid of the only child of a process: the first one in the new pid namespace. 0: none yet. */
static pid_t child_of(pid_t pid)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/task/%d/children", pid, pid);
    g_autofree char *text = NULL;
    if (!g_file_get_contents(path, &text, NULL, NULL))
        return 0;
    return (pid_t)g_ascii_strtoll(text, NULL, 10);
}

/* Waits for the agent to have been exec'd and its pid to be recorded. */
static bool await_agent(struct sp_record *record, const char *agent_path, pid_t launcher,
                        GError **error)
{
    int64_t deadline = sp_time_monotonic_ms() + START_MS;
    g_autofree char *name = g_path_get_basename(agent_path);
    while (sp_time_monotonic_ms() < deadline) {
        pid_t pid = child_of(launcher);
        g_autofree char *path = g_strdup_printf("/proc/%d/exe", pid);
        g_autofree char *exe = pid > 0 ? g_file_read_link(path, NULL) : NULL;
        g_autofree char *base = exe ? g_path_get_basename(exe) : NULL;
        if (g_strcmp0(base, name) == 0)
            return sp_record_set_process(record, pid, error);
        g_usleep(2000);
    }
    g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the agent did not start");
    return false;
}

static bool destroy(struct sp_driver *driver, const char *run_dir, GError **error);

static struct sp_instance *instance_of(struct sp_driver *driver, const char *run_dir, int pidfd)
{
    struct fake *fake = g_new0(struct fake, 1);
    fake->base.driver = driver;
    fake->run_dir = g_strdup(run_dir);
    fake->pidfd = pidfd;
    return &fake->base;
}

static bool start_recorded(struct fake_driver *driver, const struct sp_driver_spec *spec,
                           struct sp_record *record, GError **error)
{
    if (!sp_record_save(spec->run_dir, record, error))
        return false;
    int socket_fd = sp_endpoint_listen(spec->run_dir, FAKE_SOCKET, error);
    if (socket_fd < 0)
        return false;
    pid_t launcher = start(driver, spec->run_dir, socket_fd, error);
    close(socket_fd);
    if (launcher == 0)
        return false;
    g_key_file_set_integer(record->extra, FAKE_GROUP, "launcher", launcher);
    if (!sp_record_save(spec->run_dir, record, error) ||
        !await_agent(record, driver->env.agent_path, launcher, error))
        return false;
    record->started = true;
    return sp_record_save(spec->run_dir, record, error);
}

static struct sp_instance *create(struct sp_driver *base, const struct sp_driver_spec *spec,
                                  sp_step_fn step, void *user, GError **error)
{
    struct fake_driver *driver = (struct fake_driver *)base;
    int64_t began = sp_time_monotonic_us();
    struct sp_record record = {
        .id = g_strdup(spec->id),
        .tier = g_strdup("container"),
        .template_digest = g_strdup(spec->template_digest),
        .slot = spec->slot,
    };
    int pidfd = -1;
    record.extra = g_key_file_new();
    g_key_file_set_double(record.extra, FAKE_GROUP, "cpus", spec->shape.cpus);
    g_key_file_set_int64(record.extra, FAKE_GROUP, "memory_mb", spec->shape.memory_mb);
    g_key_file_set_int64(record.extra, FAKE_GROUP, "disk_mb", spec->shape.disk_mb);
    g_key_file_set_int64(record.extra, FAKE_GROUP, "pids", spec->shape.pids);
    bool kept;
    if (sp_fake_take_kept(driver, spec, &record, &kept, error) &&
        (kept || start_recorded(driver, spec, &record, error)))
        pidfd = sp_record_open_process(&record, error);
    sp_record_clear(&record);
    if (pidfd < 0) {
        destroy(base, spec->run_dir, NULL);
        return NULL;
    }
    if (step)
        step(user, "start", sp_time_monotonic_us() - began);
    return instance_of(base, spec->run_dir, pidfd);
}

static struct sp_instance *adopt(struct sp_driver *driver, const char *run_dir, bool *ret_paused,
                                 GError **error)
{
    struct sp_record record = {0};
    if (!sp_record_load(run_dir, &record, error))
        return NULL;
    int pidfd = -1;
    bool paused = record.started && sp_fake_is_stopped(record.pid);
    if (record.started)
        pidfd = sp_record_open_process(&record, error);
    else
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "it was never started");
    sp_record_clear(&record);
    if (pidfd >= 0 && ret_paused)
        *ret_paused = paused;
    return pidfd >= 0 ? instance_of(driver, run_dir, pidfd) : NULL;
}

/* Kills the processes that have the run directory in their command line: a worker that was killed
 * before it could record them has left them. Their children die with them (unshare --kill-child).
 */
static void kill_unrecorded(const char *run_dir)
{
    g_autoptr(GDir) proc = g_dir_open("/proc", 0, NULL);
    const char *name;
    while (proc && (name = g_dir_read_name(proc))) {
        pid_t pid = (pid_t)g_ascii_strtoll(name, NULL, 10);
        g_autofree char *path = g_build_filename("/proc", name, "cmdline", NULL);
        g_autofree char *text = NULL;
        gsize len;
        if (pid <= 1 || pid == getpid() || !g_file_get_contents(path, &text, &len, NULL))
            continue;
        if (len > 0 && memmem(text, len, run_dir, strlen(run_dir) + 1))
            kill(pid, SIGKILL);
    }
}

static bool await_end(int pidfd, GError **error)
{
    struct pollfd fd = {.fd = pidfd, .events = POLLIN};
    if (poll(&fd, 1, END_MS) == 1)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the agent does not end");
    return false;
}

static bool destroy(struct sp_driver *driver, const char *run_dir, GError **error)
{
    struct sp_record record = {0};
    GError *cause = NULL;
    bool gone = true;
    if (!sp_record_load(run_dir, &record, &cause)) {
        gone = g_error_matches(cause, SP_ERROR, SP_ERROR_NOT_FOUND);
        if (gone)
            g_error_free(cause);
        else
            g_propagate_error(error, cause);
        return gone;
    }
    if (record.extra && g_key_file_get_boolean(record.extra, FAKE_GROUP, "given_away", NULL)) {
        sp_record_clear(&record);
        return true;
    }
    if (record.pid > 0 && sp_fake_is_kept((struct fake_driver *)driver, &record)) {
        /* It is the memory of a saved form now: only the sandbox lets go of it. */
        gone = sp_fake_stop(record.pid, error);
        record.started = false;
        record.pid = 0;
        g_key_file_set_boolean(record.extra, FAKE_GROUP, "given_away", TRUE);
        gone = gone && sp_record_save(run_dir, &record, error);
        sp_record_clear(&record);
        return gone;
    }
    /* unshare first: its child dies with it, also one that is not the agent yet. */
    pid_t launcher =
        record.extra ? g_key_file_get_integer(record.extra, FAKE_GROUP, "launcher", NULL) : 0;
    int pidfd = record.pid > 0 ? sp_record_open_process(&record, NULL) : -1;
    if (pidfd >= 0) {
        gone =
            syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0) == 0 && await_end(pidfd, error);
        close(pidfd);
    }
    kill_unrecorded(run_dir);
    if (launcher > 0)
        waitpid(launcher, NULL, 0); /* ECHILD: it was an earlier worker's */
    sp_record_clear(&record);
    return gone;
}

/* The host name comes with IDENTITY. */
static bool claim(struct sp_instance *instance, const char *id, const char *run_dir,
                  const char *hostname, GError **error)
{
    struct fake *fake = (struct fake *)instance;
    struct sp_record record = {0};
    if (!sp_record_load(fake->run_dir, &record, error))
        return false;
    g_free(record.id);
    record.id = g_strdup(id);
    bool fine = sp_record_save(fake->run_dir, &record, error);
    sp_record_clear(&record);
    if (!fine)
        return false;
    if (rename(fake->run_dir, run_dir) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "rename to %s", run_dir);
        return false;
    }
    g_free(fake->run_dir);
    fake->run_dir = g_strdup(run_dir);
    return true;
}

static int connect_agent(struct sp_instance *instance, GError **error)
{
    return sp_endpoint_connect(((struct fake *)instance)->run_dir, FAKE_SOCKET, CONNECT_MS, error);
}

static int pidfd_of(struct sp_instance *instance)
{
    return ((struct fake *)instance)->pidfd;
}

static void instance_free(struct sp_instance *instance)
{
    struct fake *fake = (struct fake *)instance;
    close(fake->pidfd);
    g_free(fake->run_dir);
    g_free(fake);
}

static void driver_free(struct sp_driver *driver)
{
    g_free(driver);
}

static const struct sp_driver_ops ops = {
    .tier = "container",
    .probe = probe,
    .prepare = prepare,
    .create = create,
    .adopt = adopt,
    .destroy = destroy,
    .connect_agent = connect_agent,
    .pidfd = pidfd_of,
    .pause = sp_fake_pause,
    .resume = sp_fake_resume,
    .save_begin = sp_fake_save_begin,
    .save_capture = sp_fake_save_capture,
    .save_finish = sp_fake_save_finish,
    .save_free = sp_fake_save_free,
    .forget_saved = sp_fake_forget_saved,
    .claim = claim,
    .agent_holds = true, /* nothing is frozen by it, but the frames are as in a microVM */
    .max_event_data = 32768,
    .instance_free = instance_free,
    .driver_free = driver_free,
};

struct sp_driver *sp_driver_fake_new(const struct sp_driver_env *env, GError **error)
{
    struct fake_driver *driver = g_new0(struct fake_driver, 1);
    driver->base.ops = &ops;
    driver->env = *env;
    return &driver->base;
}
