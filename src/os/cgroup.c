#include "os/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "os/cgroup_private.h"

#define CPU_PERIOD_US 100000
/* What a sandbox may make below its own group when it is delegated. */
#define MAX_SUBGROUPS "4096"
#define MAX_DEPTH "2"

struct sp_cgroup *sp_cgroup_new(struct sp_cgroups *cgroups, const char *name)
{
    g_assert(*name && *name != '.' && !strchr(name, '/'));
    struct sp_cgroup *cgroup = g_new0(struct sp_cgroup, 1);
    cgroup->cgroups = cgroups;
    cgroup->name = g_strdup(name);
    return cgroup;
}

void sp_cgroup_free(struct sp_cgroup *cgroup)
{
    if (!cgroup)
        return;
    g_free(cgroup->name);
    g_free(cgroup);
}

static char *dir_in(const struct sp_cgroup *cgroup, const char *hierarchy)
{
    return g_build_filename(hierarchy, cgroup->cgroups->root, cgroup->name, NULL);
}

static bool write_number(const struct sp_cgroups *cgroups, const char *dir, const char *file,
                         int64_t value, bool optional, GError **error)
{
    char text[32];
    g_snprintf(text, sizeof text, "%" G_GINT64_FORMAT, value);
    return sp_cgroup_write(cgroups, dir, file, text, optional, error);
}

static bool limit_v2(const struct sp_cgroup *cgroup, const struct sp_cgroup_limits *limits,
                     GError **error)
{
    const struct sp_cgroups *all = cgroup->cgroups;
    g_autofree char *dir = dir_in(cgroup, all->v2);
    if (limits->memory_bytes &&
        (!write_number(all, dir, "memory.max", limits->memory_bytes, false, error) ||
         !sp_cgroup_write(all, dir, "memory.swap.max", "0", true, error)))
        return false;
    if (limits->pids && !write_number(all, dir, "pids.max", limits->pids, false, error))
        return false;
    if (limits->cpus > 0) {
        char text[64];
        g_snprintf(text, sizeof text, "%d %d", (int)MAX(limits->cpus * CPU_PERIOD_US, 1000),
                   CPU_PERIOD_US);
        return sp_cgroup_write(all, dir, "cpu.max", text, false, error);
    }
    return true;
}

static bool limit_v1(const struct sp_cgroup *cgroup, const struct sp_cgroup_limits *limits,
                     GError **error)
{
    const struct sp_cgroups *all = cgroup->cgroups;
    g_autofree char *memory = dir_in(cgroup, all->memory);
    g_autofree char *pids = dir_in(cgroup, all->pids);
    g_autofree char *cpu = dir_in(cgroup, all->cpu);
    if (limits->memory_bytes) {
        static const char memsw[] = "memory.memsw.limit_in_bytes";
        /* memsw may never be below the limit: first when the limit grows, last when it shrinks. */
        write_number(all, memory, memsw, limits->memory_bytes, true, NULL);
        if (!write_number(all, memory, "memory.limit_in_bytes", limits->memory_bytes, false,
                          error) ||
            !write_number(all, memory, memsw, limits->memory_bytes, true, error) ||
            !sp_cgroup_write(all, memory, "memory.swappiness", "0", true, error))
            return false;
    }
    if (limits->pids && !write_number(all, pids, "pids.max", limits->pids, false, error))
        return false;
    return limits->cpus <= 0 ||
           (write_number(all, cpu, "cpu.cfs_period_us", CPU_PERIOD_US, false, error) &&
            write_number(all, cpu, "cpu.cfs_quota_us",
                         (int64_t)MAX(limits->cpus * CPU_PERIOD_US, 1000), false, error));
}

bool sp_cgroup_create(struct sp_cgroup *cgroup, const struct sp_cgroup_limits *limits,
                      GError **error)
{
    struct sp_cgroups *all = cgroup->cgroups;
    for (unsigned i = 0; i < all->n_hierarchies; i++) {
        g_autofree char *dir = dir_in(cgroup, all->hierarchies[i]);
        int r = mkdir(dir, 0755);
        if (r < 0 && errno == ENOENT) {
            if (!sp_cgroups_ensure_root(all, error))
                return false;
            r = mkdir(dir, 0755);
        }
        if (r < 0 && errno != EEXIST) {
            sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "make cgroup %s", dir);
            return false;
        }
    }
    /* The installation's group is there without controllers when its maker died or failed half-way.
     */
    if (all->kind == SP_CGROUP_V2) {
        g_autofree char *dir = dir_in(cgroup, all->v2);
        g_autofree char *file = g_build_filename(dir, "memory.max", NULL);
        if (access(file, F_OK) < 0 && !sp_cgroups_ensure_root(all, error))
            return false;
    }
    return all->kind == SP_CGROUP_V2 ? limit_v2(cgroup, limits, error)
                                     : limit_v1(cgroup, limits, error);
}

bool sp_cgroup_delegate(struct sp_cgroup *cgroup, uid_t uid, gid_t gid, GError **error)
{
    const struct sp_cgroups *all = cgroup->cgroups;
    if (!all->v2)
        return true;
    g_autofree char *dir = dir_in(cgroup, all->v2);
    g_autofree char *procs = g_build_filename(dir, "cgroup.procs", NULL);
    if (!sp_cgroup_write(all, dir, "cgroup.max.descendants", MAX_SUBGROUPS, true, error) ||
        !sp_cgroup_write(all, dir, "cgroup.max.depth", MAX_DEPTH, true, error))
        return false;
    if (chown(dir, uid, gid) == 0 &&
        (chown(procs, uid, gid) == 0 || (all->fake && errno == ENOENT)))
        return true;
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "chown %s", dir);
    return false;
}

static int open_in(const struct sp_cgroup *cgroup, const char *hierarchy, const char *file,
                   int flags, GError **error)
{
    g_autofree char *dir = dir_in(cgroup, hierarchy);
    g_autofree char *path = g_build_filename(dir, file, NULL);
    if (cgroup->cgroups->fake && (flags & O_ACCMODE) == O_WRONLY)
        flags |= O_CREAT;
    int fd = open(path, flags | O_CLOEXEC, 0600);
    if (fd < 0)
        sp_error_set_errno(error, errno == ENOENT ? SP_ERROR_NOT_FOUND : SP_ERROR_INTERNAL, errno,
                           "open %s", path);
    return fd;
}

bool sp_cgroup_open_attach(const struct sp_cgroup *cgroup, struct sp_cgroup_attach *ret,
                           GError **error)
{
    const struct sp_cgroups *all = cgroup->cgroups;
    struct sp_cgroup_attach got = {.dir_fd = -1};
    bool ok = true;
    if (all->v2) {
        got.dir_fd = open_in(cgroup, all->v2, "", O_RDONLY | O_DIRECTORY, error);
        ok = got.dir_fd >= 0;
    }
    for (unsigned i = 0; ok && i < all->n_hierarchies; i++) {
        if (all->hierarchies[i] == all->v2)
            continue;
        int fd = open_in(cgroup, all->hierarchies[i], "tasks", O_WRONLY, error);
        ok = fd >= 0;
        if (ok)
            got.procs_fds[got.n_procs++] = fd;
    }
    if (ok) {
        *ret = got;
        return true;
    }
    if (got.dir_fd >= 0)
        close(got.dir_fd);
    for (unsigned i = 0; i < got.n_procs; i++)
        close(got.procs_fds[i]);
    return false;
}

bool sp_cgroup_attach_pid(const struct sp_cgroup *cgroup, pid_t pid, GError **error)
{
    const struct sp_cgroups *all = cgroup->cgroups;
    for (unsigned i = 0; i < all->n_hierarchies; i++) {
        g_autofree char *dir = dir_in(cgroup, all->hierarchies[i]);
        if (!write_number(all, dir, "cgroup.procs", pid, false, error))
            return false;
    }
    return true;
}

int sp_cgroup_open_dir(const struct sp_cgroup *cgroup, GError **error)
{
    if (!cgroup->cgroups->v2)
        return -1;
    return open_in(cgroup, cgroup->cgroups->v2, "", O_PATH | O_DIRECTORY, error);
}

int sp_cgroup_open_oom(const struct sp_cgroup *cgroup, GError **error)
{
    const struct sp_cgroups *all = cgroup->cgroups;
    return all->kind == SP_CGROUP_V2
               ? open_in(cgroup, all->v2, "memory.events", O_RDONLY, error)
               : open_in(cgroup, all->memory, "memory.oom_control", O_RDONLY, error);
}

/* Waits until "key want" stands in cgroup.events (the kernel notifies by POLLPRI). True also when
 * the group is gone. */
static bool wait_event(const char *dir, const char *key, int want, int64_t until_ms, GError **error)
{
    g_autofree char *path = g_build_filename(dir, "cgroup.events", NULL);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        if (errno == ENOENT)
            return true;
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", path);
        return false;
    }
    bool done = false;
    /* The kernel delays a notification that follows another within 10 ms: look sooner at first. */
    for (int64_t pause_us = 50;; pause_us *= 2) {
        char text[128];
        ssize_t n = pread(fd, text, sizeof text - 1, 0);
        text[n > 0 ? n : 0] = '\0';
        const char *at = n > 0 ? strstr(text, key) : NULL;
        done = n < 0 || (at && g_ascii_strtoll(at + strlen(key), NULL, 10) == want);
        int64_t left_ms = until_ms - sp_time_monotonic_ms();
        if (done || left_ms <= 0)
            break;
        int64_t us = MIN(left_ms * 1000, pause_us);
        const struct timespec wait = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
        struct pollfd p = {.fd = fd, .events = POLLPRI};
        ppoll(&p, 1, &wait, NULL);
    }
    close(fd);
    if (!done)
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "%s does not become \"%s %d\"", path, key,
                    want);
    return done;
}

/* The v1 freezer tells nobody when it is done, and may have to be told again while processes fork.
 */
static bool freeze_v1(const struct sp_cgroup *cgroup, bool frozen, int64_t until_ms, GError **error)
{
    const struct sp_cgroups *all = cgroup->cgroups;
    g_autofree char *dir = dir_in(cgroup, all->freezer);
    const char *want = frozen ? "FROZEN" : "THAWED";
    for (;;) {
        if (!sp_cgroup_write(all, dir, "freezer.state", want, false, error))
            return false;
        g_autofree char *state = sp_cgroup_read(dir, "freezer.state", error);
        if (!state)
            return false;
        if (g_str_has_prefix(state, want))
            return true;
        if (sp_time_monotonic_ms() >= until_ms) {
            g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "%s does not become %s", dir, want);
            return false;
        }
        poll(NULL, 0, 1);
    }
}

bool sp_cgroup_freeze(struct sp_cgroup *cgroup, bool frozen, int timeout_ms, GError **error)
{
    const struct sp_cgroups *all = cgroup->cgroups;
    int64_t until = sp_time_monotonic_ms() + timeout_ms;
    if (!all->v2)
        return freeze_v1(cgroup, frozen, until, error);
    g_autofree char *dir = dir_in(cgroup, all->v2);
    return sp_cgroup_write(all, dir, "cgroup.freeze", frozen ? "1" : "0", false, error) &&
           wait_event(dir, "frozen ", frozen, until, error);
}

char *sp_cgroup_freezer_dir(const struct sp_cgroup *cgroup)
{
    const struct sp_cgroups *all = cgroup->cgroups;
    return dir_in(cgroup, all->v2 ? all->v2 : all->freezer);
}

bool sp_cgroup_is_frozen(const struct sp_cgroup *cgroup)
{
    g_autofree char *dir = sp_cgroup_freezer_dir(cgroup);
    g_autofree char *text =
        sp_cgroup_read(dir, cgroup->cgroups->v2 ? "cgroup.freeze" : "freezer.state", NULL);
    /* The other answer of the v1 freezer is THAWED. */
    return text && (*text == '1' || *text == 'F');
}

/* Sends SIGKILL to every process listed in dir; *ret_n counts them. */
static bool kill_listed(const char *dir, unsigned *ret_n, GError **error)
{
    GError *cause = NULL;
    g_autofree char *procs = sp_cgroup_read(dir, "cgroup.procs", &cause);
    if (!procs) {
        bool gone = g_error_matches(cause, SP_ERROR, SP_ERROR_NOT_FOUND);
        if (gone)
            g_clear_error(&cause);
        else
            g_propagate_error(error, cause);
        *ret_n = 0;
        return gone;
    }
    g_auto(GStrv) pids = g_strsplit(procs, "\n", -1);
    unsigned n = 0;
    for (char **p = pids; *p; p++) {
        pid_t pid = (pid_t)g_ascii_strtoll(*p, NULL, 10);
        if (pid > 0) { /* 0: a process outside of our pid namespace */
            kill(pid, SIGKILL);
            n++;
        }
    }
    *ret_n = n;
    return true;
}

/* Without cgroup.kill: list and kill until the list stays empty. With the freezer nothing can fork
 * in between; SIGKILL reaches frozen processes at the thaw. */
static bool kill_by_list(const struct sp_cgroup *cgroup, const char *hierarchy, int64_t until_ms,
                         GError **error)
{
    const struct sp_cgroups *all = cgroup->cgroups;
    g_autofree char *dir = dir_in(cgroup, hierarchy);
    for (;;) {
        unsigned n = 0;
        if (all->freezer)
            freeze_v1(cgroup, true, MIN(until_ms, sp_time_monotonic_ms() + 200), NULL);
        bool ok = kill_listed(dir, &n, error);
        if (all->freezer)
            freeze_v1(cgroup, false, until_ms, NULL);
        if (!ok || n == 0)
            return ok;
        if (sp_time_monotonic_ms() >= until_ms) {
            g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "%s still has %u processes", dir, n);
            return false;
        }
        poll(NULL, 0, 2);
    }
}

bool sp_cgroup_kill(struct sp_cgroup *cgroup, int timeout_ms, GError **error)
{
    const struct sp_cgroups *all = cgroup->cgroups;
    int64_t until = sp_time_monotonic_ms() + timeout_ms;
    if (all->v2) {
        g_autofree char *dir = dir_in(cgroup, all->v2);
        GError *cause = NULL;
        if (!all->fake || access(dir, F_OK) == 0) {
            if (sp_cgroup_write(all, dir, "cgroup.kill", "1", false, &cause)) {
                if (!wait_event(dir, "populated ", 0, until, error))
                    return false;
            } else if (!g_error_matches(cause, SP_ERROR, SP_ERROR_NOT_FOUND)) {
                g_propagate_error(error, cause);
                return false;
            } else if (!kill_by_list(cgroup, all->v2, until, error)) { /* before Linux 5.14 */
                g_clear_error(&cause);
                return false;
            }
            g_clear_error(&cause);
        }
    }
    /* A process that is in a v1 group only (half attached when its starter died). */
    return all->kind == SP_CGROUP_V2 || kill_by_list(cgroup, all->memory, until, error);
}

bool sp_cgroup_remove(struct sp_cgroup *cgroup, int timeout_ms, GError **error)
{
    struct sp_cgroups *all = cgroup->cgroups;
    int64_t until = sp_time_monotonic_ms() + timeout_ms;
    for (unsigned i = 0; i < all->n_hierarchies; i++) {
        g_autofree char *dir = dir_in(cgroup, all->hierarchies[i]);
        if (!sp_cgroup_remove_dir(all, dir, until, error))
            return false;
    }
    return true;
}

bool sp_cgroup_usage(const struct sp_cgroup *cgroup, struct sp_cgroup_usage *ret, GError **error)
{
    const struct sp_cgroups *all = cgroup->cgroups;
    bool v2 = all->kind == SP_CGROUP_V2;
    g_autofree char *memory = dir_in(cgroup, v2 ? all->v2 : all->memory);
    g_autofree char *pids = dir_in(cgroup, v2 ? all->v2 : all->pids);
    g_autofree char *cpu = dir_in(cgroup, all->v2 ? all->v2 : all->cpuacct);
    struct sp_cgroup_usage u = {
        .memory_bytes = sp_cgroup_read_number(
            memory, v2 ? "memory.current" : "memory.usage_in_bytes", NULL, -1),
        .memory_peak_bytes = sp_cgroup_read_number(
            memory, v2 ? "memory.peak" : "memory.max_usage_in_bytes", NULL, 0),
        .cpu_us = all->v2 ? sp_cgroup_read_number(cpu, "cpu.stat", "usage_usec", 0)
                          : sp_cgroup_read_number(cpu, "cpuacct.usage", NULL, 0) / 1000,
        .pids = sp_cgroup_read_number(pids, "pids.current", NULL, 0),
        .oom_kills = sp_cgroup_read_number(memory, v2 ? "memory.events" : "memory.oom_control",
                                           "oom_kill", 0),
    };
    if (u.memory_bytes < 0) {
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "cgroup %s does not exist", cgroup->name);
        return false;
    }
    *ret = u;
    return true;
}
