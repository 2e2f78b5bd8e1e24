/* Pause and resume: the machine stands still, its memory stays. */
#include <string.h>

#include "base/error.h"
#include "driver/microvm/instance.h"
#include "driver/microvm/vmm.h"

/* Together at most 5 s. A stop writes the disks' caches back. */
#define CONNECT_MS 1000
#define CHANGE_MS 3000
#define STATUS_MS 500

char *sp_microvm_status(struct sp_qmp *qmp, GError **error)
{
    g_autoptr(json_t) value = sp_qmp_call(qmp, "query-status", NULL, -1, STATUS_MS, error);
    if (!value)
        return NULL;
    const char *status = json_string_value(json_object_get(value, "status"));
    return g_strdup(status ? status : "unknown");
}

static bool expect(struct sp_qmp *qmp, const char *wanted, GError **error)
{
    g_autofree char *status = sp_microvm_status(qmp, error);
    if (!status)
        return false;
    if (strcmp(status, wanted) == 0)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION, "the VM's state is %s, not %s",
                status, wanted);
    return false;
}

static bool do_pause(struct sp_qmp *qmp, GError **error)
{
    return sp_qmp_run(qmp, "stop", NULL, -1, CHANGE_MS, error) && expect(qmp, "paused", error);
}

static bool do_continue(struct sp_qmp *qmp, GError **error)
{
    return sp_qmp_run(qmp, "cont", NULL, -1, CHANGE_MS, error) && expect(qmp, "running", error);
}

/* Only what pause() has stopped goes on: a VM that stands still because of an error must not. */
static bool do_resume(struct sp_qmp *qmp, GError **error)
{
    g_autofree char *status = sp_microvm_status(qmp, error);
    if (!status)
        return false;
    if (strcmp(status, "running") == 0)
        return true;
    if (strcmp(status, "paused") != 0) {
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION, "the VM's state is %s", status);
        return false;
    }
    return do_continue(qmp, error);
}

static bool with_qmp(struct sp_vm_instance *instance,
                     bool (*run)(struct sp_qmp *qmp, GError **error), GError **error)
{
    if (instance->qmp)
        return run(instance->qmp, error);
    struct sp_qmp *qmp = sp_qmp_connect(instance->run_dir, SP_VMM_QMP, CONNECT_MS, error);
    bool ok = qmp && run(qmp, error);
    sp_qmp_free(qmp);
    return ok;
}

/* While a VM is saved the connection is held (instance->qmp) and nobody else can make it run, so
 * what pause() has seen stays true. */
bool sp_microvm_pause(struct sp_instance *base, GError **error)
{
    struct sp_vm_instance *instance = (struct sp_vm_instance *)base;
    bool ok = with_qmp(instance, do_pause, error);
    instance->stopped = ok && instance->qmp;
    return ok;
}

bool sp_microvm_resume(struct sp_instance *base, GError **error)
{
    struct sp_vm_instance *instance = (struct sp_vm_instance *)base;
    bool stopped = instance->stopped && instance->qmp;
    instance->stopped = false;
    return with_qmp(instance, stopped ? do_continue : do_resume, error);
}
