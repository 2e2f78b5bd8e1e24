#include "node/forms.h"

#include "base/error.h"
#include "disk/saved.h"
#include "driver/record.h"
#include "node/drivers.h"
#include "node/run_dir.h"

bool sp_forms_check_tier(struct sp_driver *driver, bool memory, GError **error)
{
    const struct sp_driver_ops *ops = driver->ops;
    if (!ops->save_begin || !ops->save_capture || !ops->save_finish || !ops->save_free) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED,
                    "the %s tier cannot save sandboxes: pause it instead", ops->tier);
        return false;
    }
    g_autofree char *reason = NULL;
    if (!memory || !ops->can_save_memory || ops->can_save_memory(driver, &reason))
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "the %s tier cannot save memory here%s%s",
                ops->tier, reason ? ": " : "", reason ? reason : "");
    return false;
}

bool sp_forms_remove(struct sp_node *node, const char *name, GError **error)
{
    static const char *const tiers[] = {"container", "microvm"};
    if (!sp_saved_exists(node->volume, name))
        return true;
    g_autofree char *dir = sp_saved_path(node->volume, name);
    for (size_t i = 0; i < G_N_ELEMENTS(tiers); i++) {
        struct sp_driver *driver = sp_drivers_find(node->drivers, tiers[i]);
        if (driver && driver->ops->forget_saved)
            driver->ops->forget_saved(driver, dir);
    }
    return sp_saved_remove(node->volume, name, error);
}

bool sp_forms_remove_instance(struct sp_sandbox *sandbox, GError **error)
{
    struct sp_record record = {0};
    GError *cause = NULL;
    if (sp_record_load(sandbox->run_dir, &record, &cause)) {
        struct sp_driver *driver = sp_drivers_find(sandbox->node->drivers, record.tier);
        bool gone = driver && driver->ops->destroy(driver, sandbox->run_dir, error);
        if (!driver)
            g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "the record names a tier \"%s\"",
                        record.tier);
        sp_record_clear(&record);
        if (!gone)
            return false;
    } else if (!g_error_matches(cause, SP_ERROR, SP_ERROR_NOT_FOUND)) {
        g_propagate_error(error, cause);
        return false;
    }
    g_clear_error(&cause);
    return sp_run_dir_clean(sandbox->run_dir, error);
}
