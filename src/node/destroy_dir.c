#include "node/destroy_dir.h"

#include <errno.h>
#include <unistd.h>

#include "base/error.h"
#include "disk/tree.h"
#include "driver/record.h"
#include "node/drivers.h"

/* The driver that the record names; *ret_nothing: there is no record, so nothing was made. */
static struct sp_driver *recorded_driver(struct sp_node *node, const char *run_dir,
                                         bool *ret_nothing, GError **error)
{
    struct sp_record record = {0};
    GError *cause = NULL;
    *ret_nothing = false;
    if (!sp_record_load(run_dir, &record, &cause)) {
        if (g_error_matches(cause, SP_ERROR, SP_ERROR_NOT_FOUND)) {
            g_error_free(cause);
            *ret_nothing = true;
        } else {
            g_propagate_error(error, cause);
        }
        return NULL;
    }
    struct sp_driver *driver = sp_drivers_find(node->drivers, record.tier);
    if (!driver)
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "the record names a tier \"%s\"",
                    record.tier);
    sp_record_clear(&record);
    return driver;
}

bool sp_destroy_run_dir(struct sp_node *node, const char *run_dir, GError **error)
{
    if (access(run_dir, F_OK) < 0 && errno == ENOENT)
        return true;
    bool nothing;
    struct sp_driver *driver = recorded_driver(node, run_dir, &nothing, error);
    if (!driver && !nothing)
        return false;
    if (driver && !driver->ops->destroy(driver, run_dir, error))
        return false;
    if (sp_tree_remove(run_dir) == 0)
        return true;
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "removing %s", run_dir);
    return false;
}
