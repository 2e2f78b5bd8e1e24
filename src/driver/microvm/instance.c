#include "driver/microvm/instance.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "disk/volume.h"
#include "os/endpoint.h"
#include "driver/microvm/qmp_client.h"
#include "driver/microvm/vmm.h"
#include "driver/record.h"
#include "os/cleanup.h"
#include "os/pidfd.h"

#define KILL_TIMEOUT_MS 10000
#define QMP_TIMEOUT_MS 5000
#define CONNECT_TIMEOUT_MS 5000

struct vm_instance {
    struct sp_instance base;
    char *run_dir;
    int pidfd;
    int agent_fd; /* the connection of create(), handed out once; −1 after that */
};

static struct sp_microvm *microvm_of(struct sp_driver *driver)
{
    return (struct sp_microvm *)driver;
}

static struct vm_instance *vm_instance_of(struct sp_instance *instance)
{
    return (struct vm_instance *)instance;
}

char *sp_microvm_disk_path(const struct sp_microvm *vm, const char *id)
{
    g_autofree char *name = g_strconcat(id, ".disk", NULL);
    return g_build_filename(sp_volume_dir(vm->env->volume), "layers", name, NULL);
}

struct sp_instance *sp_microvm_instance_new(struct sp_microvm *vm, const char *run_dir, int pidfd,
                                            int agent_fd)
{
    struct vm_instance *instance = g_new0(struct vm_instance, 1);
    instance->base.driver = &vm->base;
    instance->run_dir = g_strdup(run_dir);
    instance->pidfd = pidfd;
    instance->agent_fd = agent_fd;
    return &instance->base;
}

void sp_microvm_instance_free(struct sp_instance *base)
{
    if (!base)
        return;
    struct vm_instance *instance = vm_instance_of(base);
    if (instance->agent_fd >= 0)
        close(instance->agent_fd);
    close(instance->pidfd);
    g_free(instance->run_dir);
    g_free(instance);
}

int sp_microvm_pidfd(struct sp_instance *instance)
{
    return vm_instance_of(instance)->pidfd;
}

int sp_microvm_connect_agent(struct sp_instance *base, GError **error)
{
    struct vm_instance *instance = vm_instance_of(base);
    if (instance->agent_fd >= 0)
        return sp_steal_fd(&instance->agent_fd);
    return sp_endpoint_connect(instance->run_dir, SP_VMM_AGENT, CONNECT_TIMEOUT_MS, error);
}

/* --- adopt --- */

/* Whether the guest runs. SP_ERROR_NOT_FOUND: it never will again. */
static bool check_running(const char *run_dir, GError **error)
{
    static const char *const over[] = {"guest-panicked", "internal-error", "shutdown", NULL};
    struct sp_qmp *qmp = sp_qmp_connect(run_dir, SP_VMM_QMP, QMP_TIMEOUT_MS, error);
    if (!qmp)
        return false;
    g_autoptr(json_t) value = sp_qmp_call(qmp, "query-status", NULL, -1, QMP_TIMEOUT_MS, error);
    sp_qmp_free(qmp);
    if (!value)
        return false;
    const char *status = json_string_value(json_object_get(value, "status"));
    if (status && strcmp(status, "running") == 0)
        return true;
    bool ended = status && g_strv_contains(over, status);
    g_set_error(error, SP_ERROR, ended ? SP_ERROR_NOT_FOUND : SP_ERROR_UNAVAILABLE,
                "the VM's state is %s", status ? status : "unknown");
    return false;
}

struct sp_instance *sp_microvm_adopt(struct sp_driver *driver, const char *run_dir,
                                     bool *ret_paused, GError **error)
{
    struct sp_record record = {0};
    if (!sp_record_load(run_dir, &record, error))
        return NULL;
    int pidfd = -1;
    if (record.started)
        pidfd = sp_record_open_process(&record, error);
    else
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "the VM never came to be");
    sp_record_clear(&record);
    if (pidfd < 0)
        return NULL;
    g_autoptr(GError) cause = NULL;
    if (ret_paused)
        *ret_paused = false;
    if (check_running(run_dir, &cause))
        return sp_microvm_instance_new(microvm_of(driver), run_dir, pidfd, -1);
    /* A missing socket proves nothing as long as the process lives: unless it has just ended. */
    bool gone = sp_pidfd_wait(pidfd, 0);
    close(pidfd);
    if (gone)
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "the VM has ended");
    else
        g_propagate_error(error, g_steal_pointer(&cause));
    return NULL;
}

/* --- destroy --- */

static bool kill_process(const struct sp_record *record, GError **error)
{
    if (record->pid == 0)
        return true;
    g_autoptr(GError) cause = NULL;
    SP_CLEANUP(sp_close_fdp) int pidfd = sp_record_open_process(record, &cause);
    if (pidfd >= 0)
        return sp_pidfd_kill(pidfd, KILL_TIMEOUT_MS, error);
    if (g_error_matches(cause, SP_ERROR, SP_ERROR_NOT_FOUND))
        return true;
    g_propagate_error(error, g_steal_pointer(&cause));
    return false;
}

/* Also finds a process that was started, but not recorded any more. */
static bool remove_cgroup(struct sp_microvm *vm, const struct sp_record *record, GError **error)
{
    if (!record->cgroup)
        return true;
    SP_CLEANUP(sp_cgroup_free_p)
    struct sp_cgroup *cgroup = sp_cgroup_new(vm->cgroups, record->cgroup);
    return sp_cgroup_kill(cgroup, KILL_TIMEOUT_MS, error) &&
           sp_cgroup_remove(cgroup, KILL_TIMEOUT_MS, error);
}

static bool remove_disk(struct sp_microvm *vm, const struct sp_record *record, GError **error)
{
    g_autofree char *path = sp_microvm_disk_path(vm, record->id);
    if (unlink(path) == 0 || errno == ENOENT)
        return true;
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "remove %s", path);
    return false;
}

bool sp_microvm_destroy(struct sp_driver *driver, const char *run_dir, GError **error)
{
    struct sp_microvm *vm = microvm_of(driver);
    struct sp_record record = {0};
    g_autoptr(GError) cause = NULL;
    if (!sp_record_load(run_dir, &record, &cause)) {
        if (g_error_matches(cause, SP_ERROR, SP_ERROR_NOT_FOUND))
            return true;
        g_propagate_error(error, g_steal_pointer(&cause));
        return false;
    }
    bool ok = kill_process(&record, error) && remove_cgroup(vm, &record, error) &&
              remove_disk(vm, &record, error) && sp_vmm_remove_files(run_dir, error);
    sp_record_clear(&record);
    return ok;
}
