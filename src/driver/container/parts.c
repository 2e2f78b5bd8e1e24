/* Parts of the driver that are made once, at first use: a host where one is impossible still
 * starts, and probe() can say what is missing. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"
#include "base/limits.h"
#include "driver/container/container.h"
#include "os/seccomp.h"

struct sp_cgroups *sp_container_cgroups(struct sp_container_driver *driver, GError **error)
{
    g_mutex_lock(&driver->lock);
    if (!driver->cgroups)
        driver->cgroups = sp_cgroups_open(NULL, driver->env.cgroup_root, error);
    struct sp_cgroups *cgroups = driver->cgroups;
    g_mutex_unlock(&driver->lock);
    return cgroups;
}

int sp_container_seccomp(struct sp_container_driver *driver, GError **error)
{
    g_mutex_lock(&driver->lock);
    if (driver->seccomp_fd < 0)
        driver->seccomp_fd = sp_seccomp_container_new(error);
    int fd = driver->seccomp_fd;
    g_mutex_unlock(&driver->lock);
    return fd;
}

/* Makes the template in the form that this kernel can copy, and a first copy. */
static int first_dev(struct sp_container_driver *driver, GError **error)
{
    const struct sp_driver_env *env = &driver->env;
    for (unsigned attached = 0; attached < 2; attached++) {
        struct sp_container_dev *dev =
            sp_container_dev_new(env->state_dir, env->agent_path, attached, error);
        int fd = dev ? sp_container_dev_clone(dev, attached ? error : NULL) : -1;
        if (fd >= 0) {
            driver->dev = dev;
            return fd;
        }
        sp_container_dev_free(dev);
        if (!dev)
            break;
    }
    return -1;
}

int sp_container_clone_dev(struct sp_container_driver *driver, GError **error)
{
    g_mutex_lock(&driver->lock);
    int fd = driver->dev ? sp_container_dev_clone(driver->dev, error) : first_dev(driver, error);
    g_mutex_unlock(&driver->lock);
    return fd;
}

int sp_container_idmap(struct sp_container_driver *driver, unsigned slot, GError **error)
{
    g_assert(slot < SP_SLOTS);
    unsigned place = slot % SP_CONTAINER_IDMAPS;
    int ret = -1;
    g_mutex_lock(&driver->lock);
    if (driver->idmaps[place].fd >= 0 && driver->idmaps[place].slot == slot)
        ret = fcntl(driver->idmaps[place].fd, F_DUPFD_CLOEXEC, 3);
    g_mutex_unlock(&driver->lock);
    if (ret >= 0)
        return ret;
    /* Outside of the lock: the launcher may take a while. */
    ret = sp_launcher_user_namespace(driver->env.launcher, SP_SLOT_UID(slot), SP_UID_BLOCK, error);
    int kept = ret < 0 ? -1 : fcntl(ret, F_DUPFD_CLOEXEC, 3);
    if (kept < 0)
        return ret;
    g_mutex_lock(&driver->lock);
    int old = driver->idmaps[place].fd;
    driver->idmaps[place].fd = kept;
    driver->idmaps[place].slot = slot;
    g_mutex_unlock(&driver->lock);
    if (old >= 0)
        close(old);
    return ret;
}

void sp_container_parts_clear(struct sp_container_driver *driver)
{
    for (unsigned i = 0; i < SP_CONTAINER_IDMAPS; i++)
        if (driver->idmaps[i].fd >= 0)
            close(driver->idmaps[i].fd);
    if (driver->seccomp_fd >= 0)
        close(driver->seccomp_fd);
    sp_container_dev_free(driver->dev);
    sp_cgroups_free(driver->cgroups);
}
