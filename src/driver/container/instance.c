/* What is done to a running container: pause, resume, claim. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "driver/container/container.h"

/* pause() and resume() answer within 5 s: this, and the thaw after it. */
#define FREEZE_MS 3500
#define THAW_MS 1000

struct sp_container *sp_container_instance_new(struct sp_driver *driver, const char *run_dir,
                                               int pidfd, struct sp_record *record)
{
    struct sp_container *container = g_new0(struct sp_container, 1);
    container->base.driver = driver;
    container->run_dir = g_strdup(run_dir);
    container->pidfd = pidfd;
    container->record = *record;
    memset(record, 0, sizeof *record);
    return container;
}

void sp_container_instance_free(struct sp_instance *instance)
{
    struct sp_container *container = (struct sp_container *)instance;
    if (!container)
        return;
    if (container->pidfd >= 0)
        close(container->pidfd);
    sp_record_clear(&container->record);
    g_free(container->run_dir);
    g_free(container);
}

struct sp_cgroup *sp_container_cgroup(const struct sp_container *container, GError **error)
{
    struct sp_container_driver *driver = (struct sp_container_driver *)container->base.driver;
    struct sp_cgroups *cgroups = sp_container_cgroups(driver, error);
    return cgroups ? sp_cgroup_new(cgroups, container->record.cgroup) : NULL;
}

bool sp_container_pause(struct sp_instance *instance, GError **error)
{
    const struct sp_container *container = (struct sp_container *)instance;
    SP_CLEANUP(sp_cgroup_free_p)
    struct sp_cgroup *cgroup = sp_container_cgroup(container, error);
    if (!cgroup)
        return false;
    GError *cause = NULL;
    if (sp_cgroup_freeze(cgroup, true, FREEZE_MS, &cause))
        return true;
    /* A process sleeps where no signal reaches it (a dead network disk): half a pause is none. */
    sp_cgroup_freeze(cgroup, false, THAW_MS, NULL);
    g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE,
                "pause %s: a process cannot be stopped now; the sandbox runs on: %s",
                container->record.id, cause->message);
    g_error_free(cause);
    return false;
}

bool sp_container_resume(struct sp_instance *instance, GError **error)
{
    const struct sp_container *container = (struct sp_container *)instance;
    SP_CLEANUP(sp_cgroup_free_p)
    struct sp_cgroup *cgroup = sp_container_cgroup(container, error);
    if (!cgroup || !sp_cgroup_freeze(cgroup, false, FREEZE_MS, error)) {
        g_prefix_error(error, "resume %s: ", container->record.id);
        return false;
    }
    return true;
}

struct naming {
    int pidfd;
    const char *hostname;
    int failed_errno;
};

/* In a thread of its own, since setns(2) changes the thread for good. */
static gpointer set_hostname(gpointer argument)
{
    struct naming *naming = argument;
    if (setns(naming->pidfd, CLONE_NEWUTS) < 0 ||
        sethostname(naming->hostname, strlen(naming->hostname)) < 0)
        naming->failed_errno = errno;
    return NULL;
}

/* Saves the record under the new id. On failure it is as before. */
static bool rename_record(struct sp_container *container, const char *id, GError **error)
{
    struct sp_record *record = &container->record;
    char *old = record->id;
    record->id = g_strdup(id);
    if (sp_record_save(container->run_dir, record, error)) {
        g_free(old);
        return true;
    }
    g_free(record->id);
    record->id = old;
    return false;
}

/* The rename of the directory is the moment it happens. Before, nothing says so but the id in the
 * record, by which nothing is found: cgroup and layer keep their names, which are in the record
 * too. */
bool sp_container_claim(struct sp_instance *instance, const char *id, const char *run_dir,
                        const char *hostname, GError **error)
{
    struct sp_container *container = (struct sp_container *)instance;
    struct naming naming = {.pidfd = container->pidfd, .hostname = hostname};
    g_thread_join(g_thread_new("hostname", set_hostname, &naming));
    if (naming.failed_errno) {
        enum sp_error_code code =
            naming.failed_errno == ESRCH ? SP_ERROR_NOT_FOUND : SP_ERROR_INTERNAL;
        sp_error_set_errno(error, code, naming.failed_errno, "claim %s: host name",
                           container->record.id);
        return false;
    }
    g_autofree char *old = g_strdup(container->record.id);
    if (!rename_record(container, id, error))
        return false;
    /* An empty directory is replaced; one with a record is another sandbox's. */
    if (rename(container->run_dir, run_dir) < 0) {
        sp_error_set_errno(error, errno == ENOTEMPTY ? SP_ERROR_CONFLICT : SP_ERROR_INTERNAL, errno,
                           "claim %s: rename to %s", old, run_dir);
        rename_record(container, old, NULL);
        return false;
    }
    g_free(container->run_dir);
    container->run_dir = g_strdup(run_dir);
    return true;
}
