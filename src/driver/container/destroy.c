#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "disk/layer.h"
#include "disk/tree.h"
#include "driver/container/container.h"
#include "driver/container/criu.h"
#include "os/mount.h"
#include "os/pidfd.h"

static bool remove_file(const char *run_dir, const char *name, GError **error)
{
    g_autofree char *path = g_build_filename(run_dir, name, NULL);
    if (unlink(path) == 0 || errno == ENOENT)
        return true;
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "remove %s", path);
    return false;
}

/* The cgroup holds every process from its first moment on; the recorded process is a second way,
 * for a cgroup that someone has removed or emptied. */
static bool end_processes(struct sp_cgroup *cgroup, const struct sp_record *record,
                          const char *run_dir, GError **error)
{
    SP_CLEANUP(sp_close_fdp) int dump = sp_criu_left_dump(run_dir);
    if (dump >= 0 && !sp_pidfd_kill(dump, SP_CONTAINER_END_MS, error))
        return false;
    if (cgroup && !sp_cgroup_kill(cgroup, SP_CONTAINER_END_MS, error))
        return false;
    GError *cause = NULL;
    SP_CLEANUP(sp_close_fdp) int pidfd = sp_record_open_process(record, &cause);
    if (pidfd >= 0)
        return sp_pidfd_kill(pidfd, SP_CONTAINER_END_MS, error);
    if (g_error_matches(cause, SP_ERROR, SP_ERROR_NOT_FOUND)) {
        g_error_free(cause);
        return true;
    }
    g_propagate_error(error, cause);
    return false;
}

static bool remove_point(const char *run_dir, const char *name, GError **error)
{
    g_autofree char *point = g_build_filename(run_dir, name, NULL);
    if (sp_mount_is_point(point) && !sp_mount_detach(point, error))
        return false;
    if (rmdir(point) == 0 || errno == ENOENT)
        return true;
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "remove %s", point);
    return false;
}

/* Of a worker that was killed beside CRIU. */
static bool remove_work(const char *run_dir, GError **error)
{
    g_autofree char *path = g_build_filename(run_dir, SP_CRIU_WORK, NULL);
    if (sp_tree_remove(path) == 0)
        return true;
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "remove %s", path);
    return false;
}

static bool remove_all(struct sp_container_driver *driver, const char *run_dir,
                       const struct sp_record *record, GError **error)
{
    SP_CLEANUP(sp_cgroup_free_p) struct sp_cgroup *cgroup = NULL;
    if (record->cgroup) {
        struct sp_cgroups *cgroups = sp_container_cgroups(driver, error);
        if (!cgroups)
            return false;
        cgroup = sp_cgroup_new(cgroups, record->cgroup);
    }
    g_autofree char *layer = sp_container_layer_name(record);
    return end_processes(cgroup, record, run_dir, error) &&
           remove_point(run_dir, SP_CONTAINER_LOWER, error) &&
           remove_point(run_dir, SP_CONTAINER_UPPER, error) && remove_work(run_dir, error) &&
           sp_layer_destroy(driver->env.volume, layer, error) &&
           (!cgroup || sp_cgroup_remove(cgroup, SP_CONTAINER_END_MS, error));
}

bool sp_container_destroy(struct sp_driver *base, const char *run_dir, GError **error)
{
    struct sp_container_driver *driver = (struct sp_container_driver *)base;
    struct sp_record record = {0};
    GError *cause = NULL;
    if (!sp_record_load(run_dir, &record, &cause)) {
        /* The record is made first and removed last. */
        if (!g_error_matches(cause, SP_ERROR, SP_ERROR_NOT_FOUND)) {
            g_propagate_error(error, cause);
            return false;
        }
        g_error_free(cause);
        return true;
    }
    bool ok = false;
    if (!g_str_equal(record.tier, SP_CONTAINER_TIER))
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "%s is a %s", record.id, record.tier);
    else
        ok = remove_all(driver, run_dir, &record, error) &&
             remove_file(run_dir, SP_RECORD_FILE, error);
    if (!ok)
        g_prefix_error(error, "destroy %s: ", record.id);
    sp_record_clear(&record);
    return ok;
}

struct sp_instance *sp_container_adopt(struct sp_driver *base, const char *run_dir,
                                       bool *ret_paused, GError **error)
{
    struct sp_record record = {0};
    if (!sp_record_load(run_dir, &record, error))
        return NULL;
    struct sp_container *container = NULL;
    int pidfd = -1;
    if (!g_str_equal(record.tier, SP_CONTAINER_TIER))
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "%s is a %s", record.id, record.tier);
    else if (!record.started)
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "%s was never fully made", record.id);
    else
        pidfd = sp_record_open_process(&record, error);
    SP_CLEANUP(sp_close_fdp) int dump = pidfd < 0 ? -1 : sp_criu_left_dump(run_dir);
    if (dump >= 0 && sp_criu_is_overdue(run_dir) &&
        sp_pidfd_kill(dump, SP_CONTAINER_END_MS, NULL)) {
        close(dump);
        dump = -1;
    }
    if (dump >= 0) {
        /* It has the processes in its hands, and will put them where they were: frozen. */
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "%s is still being saved by CRIU",
                    record.id);
        close(pidfd);
        pidfd = -1;
    }
    if (pidfd >= 0) {
        container = sp_container_instance_new(base, run_dir, pidfd, &record);
        SP_CLEANUP(sp_cgroup_free_p)
        struct sp_cgroup *cgroup = sp_container_cgroup(container, error);
        if (!cgroup) {
            sp_container_instance_free(&container->base);
            return NULL;
        }
        if (ret_paused)
            *ret_paused = sp_cgroup_is_frozen(cgroup);
    }
    sp_record_clear(&record);
    return container ? &container->base : NULL;
}
