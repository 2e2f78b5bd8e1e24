#include <errno.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/container/container.h"
#include "driver/container/criu.h"
#include "os/mount.h"
#include "os/pidfd.h"

#define PROBE_END_MS 5000

/* Starts the agent's file with everything but an image; it exits at once. */
static bool try_start(struct sp_container_driver *driver, GError **error)
{
    struct sp_container_fds fds = {.root = -1, .cgroup = -1, .oom = -1};
    fds.seccomp = sp_container_seccomp(driver, error);
    if (fds.seccomp < 0)
        return false;
    fds.dev = sp_container_clone_dev(driver, error);
    if (fds.dev < 0)
        return false;
    SP_CLEANUP(sp_plan_free_p) struct sp_plan *plan = sp_container_probe_plan(&fds);
    pid_t pid;
    SP_CLEANUP(sp_close_fdp) int pidfd = -1;
    if (!sp_launcher_spawn(driver->env.launcher, plan, &pid, &pidfd, error))
        return false;
    return sp_pidfd_wait(pidfd, PROBE_END_MS) || sp_pidfd_kill(pidfd, PROBE_END_MS, error);
}

/* Makes and removes a group with all limits. */
static bool try_cgroup(struct sp_cgroups *cgroups, GError **error)
{
    const struct sp_cgroup_limits limits = {.memory_bytes = 64 << 20, .pids = 16, .cpus = 1};
    SP_CLEANUP(sp_cgroup_free_p) struct sp_cgroup *cgroup = sp_cgroup_new(cgroups, "probe");
    sp_cgroup_remove(cgroup, PROBE_END_MS, NULL); /* of a worker that was killed here */
    bool made = sp_cgroup_create(cgroup, &limits, error);
    bool removed = sp_cgroup_remove(cgroup, PROBE_END_MS, made ? error : NULL);
    return made && removed;
}

static bool check(struct sp_container_driver *driver, GError **error)
{
    if (geteuid() != 0) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "needs root");
        return false;
    }
    static const char *const file_systems[] = {"overlay", "erofs", "tmpfs"};
    for (size_t i = 0; i < G_N_ELEMENTS(file_systems); i++) {
        if (sp_mount_supported(file_systems[i]))
            continue;
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "the kernel has no %s", file_systems[i]);
        return false;
    }
    struct sp_cgroups *cgroups = sp_container_cgroups(driver, error);
    return cgroups && try_cgroup(cgroups, error) && try_start(driver, error);
}

void sp_container_probe(struct sp_driver *base, struct sp_tier_status *ret_status)
{
    struct sp_container_driver *driver = (struct sp_container_driver *)base;
    g_autoptr(GError) error = NULL;
    ret_status->available = check(driver, &error);
    ret_status->detail =
        g_strdup(ret_status->available ? sp_cgroups_kind_name(driver->cgroups) : error->message);
    if (ret_status->available)
        sp_criu_trial_begin(driver); /* goes on by itself */
}
