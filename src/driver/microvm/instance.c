#include "driver/microvm/instance.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "os/endpoint.h"
#include "driver/microvm/facts.h"
#include "driver/microvm/qmp_client.h"
#include "driver/microvm/resources.h"
#include "driver/microvm/vmm.h"
#include "driver/record.h"
#include "os/cleanup.h"
#include "os/pidfd.h"

#define KILL_TIMEOUT_MS 10000
#define QMP_TIMEOUT_MS 5000
#define CONNECT_TIMEOUT_MS 5000

static struct sp_microvm *microvm_of(struct sp_driver *driver)
{
    return (struct sp_microvm *)driver;
}

static struct sp_vm_instance *vm_instance_of(struct sp_instance *instance)
{
    return (struct sp_vm_instance *)instance;
}

struct sp_instance *sp_microvm_instance_new(struct sp_microvm *vm, const char *run_dir, int pidfd,
                                            int agent_fd)
{
    struct sp_vm_instance *instance = g_new0(struct sp_vm_instance, 1);
    instance->base.driver = &vm->base;
    instance->run_dir = g_strdup(run_dir);
    instance->pidfd = pidfd;
    instance->agent_fd = agent_fd;
    return &instance->base;
}

void sp_microvm_instance_keep(struct sp_instance *instance, struct sp_ram *ram)
{
    vm_instance_of(instance)->ram = ram;
}

void sp_microvm_instance_free(struct sp_instance *base)
{
    if (!base)
        return;
    struct sp_vm_instance *instance = vm_instance_of(base);
    if (instance->agent_fd >= 0)
        close(instance->agent_fd);
    close(instance->pidfd);
    sp_qmp_free(instance->qmp);
    sp_ram_unref(instance->ram);
    g_free(instance->run_dir);
    g_free(instance);
}

int sp_microvm_pidfd(struct sp_instance *instance)
{
    return vm_instance_of(instance)->pidfd;
}

int sp_microvm_connect_agent(struct sp_instance *base, GError **error)
{
    struct sp_vm_instance *instance = vm_instance_of(base);
    if (instance->agent_fd >= 0)
        return sp_steal_fd(&instance->agent_fd);
    return sp_endpoint_connect(instance->run_dir, SP_VMM_AGENT, CONNECT_TIMEOUT_MS, error);
}

/* --- adopt --- */

/* Whether the guest runs, or is paused. SP_ERROR_NOT_FOUND: it never will run again. */
static bool check_running(const char *run_dir, bool *ret_paused, GError **error)
{
    static const char *const over[] = {"guest-panicked", "internal-error", "shutdown", NULL};
    struct sp_qmp *qmp = sp_qmp_connect(run_dir, SP_VMM_QMP, QMP_TIMEOUT_MS, error);
    if (!qmp)
        return false;
    g_autofree char *status = sp_microvm_status(qmp, error);
    sp_qmp_free(qmp);
    if (!status)
        return false;
    bool paused = strcmp(status, "paused") == 0;
    if (paused || strcmp(status, "running") == 0) {
        if (ret_paused)
            *ret_paused = paused;
        return true;
    }
    g_set_error(error, SP_ERROR,
                g_strv_contains(over, status) ? SP_ERROR_NOT_FOUND : SP_ERROR_UNAVAILABLE,
                "the VM's state is %s", status);
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
    if (check_running(run_dir, ret_paused, &cause))
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

static bool remove_files(struct sp_microvm *vm, const struct sp_record *record, GError **error)
{
    struct sp_vm_facts facts;
    sp_vm_facts_load(record, &facts);
    bool ok = sp_vm_files_remove(vm, facts.name, error);
    sp_vm_facts_clear(&facts);
    return ok;
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
              remove_files(vm, &record, error) && sp_vmm_remove_files(run_dir, error);
    sp_record_clear(&record);
    return ok;
}

/* --- claim --- */

unsigned sp_microvm_slot(struct sp_instance *base)
{
    struct sp_record record = {0};
    unsigned slot = G_MAXUINT;
    if (sp_record_load(vm_instance_of(base)->run_dir, &record, NULL))
        slot = record.slot;
    sp_record_clear(&record);
    return slot;
}

/* The record first: until the rename the member's directory names everything, after it the
 * sandbox's does. */
bool sp_microvm_claim(struct sp_instance *base, const char *id, const char *run_dir,
                      const char *hostname, GError **error)
{
    struct sp_vm_instance *instance = vm_instance_of(base);
    struct sp_record record = {0};
    if (!sp_record_load(instance->run_dir, &record, error))
        return false;
    g_autofree char *old_id = g_steal_pointer(&record.id);
    record.id = g_strdup(id);
    bool ok = sp_record_save(instance->run_dir, &record, error);
    if (ok && rename(instance->run_dir, run_dir) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "rename %s to %s", instance->run_dir,
                           run_dir);
        ok = false;
        g_free(record.id);
        record.id = g_strdup(old_id);
        sp_record_save(instance->run_dir, &record, NULL);
    }
    sp_record_clear(&record);
    if (ok) {
        g_free(instance->run_dir);
        instance->run_dir = g_strdup(run_dir);
    }
    return ok;
}
