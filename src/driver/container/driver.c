#include <unistd.h>

#include "base/error.h"
#include "driver/container/container.h"
#include "driver/container/criu.h"

#define MAX_EVENT_DATA 60000 /* a local socket takes frames of any size */

static bool prepare(struct sp_driver *base, const char *template_dir, const struct sp_shape *shape,
                    sp_progress_fn progress, void *user, GError **error)
{
    struct sp_container_driver *driver = (struct sp_container_driver *)base;
    g_autofree char *image = sp_images_mount(driver->images, template_dir, error);
    if (!image)
        return false;
    SP_CLEANUP(sp_close_fdp) int dev = sp_container_clone_dev(driver, error);
    return dev >= 0 && sp_container_seccomp(driver, error) >= 0;
}

static bool forget_template(struct sp_driver *base, const char *template_dir, GError **error)
{
    struct sp_container_driver *driver = (struct sp_container_driver *)base;
    g_autofree char *hex = g_path_get_basename(template_dir);
    g_autofree char *digest = g_strconcat("sha256:", hex, NULL);
    return sp_images_unmount(driver->images, digest, error);
}

static int pidfd(struct sp_instance *instance)
{
    return ((struct sp_container *)instance)->pidfd;
}

static void driver_free(struct sp_driver *base)
{
    struct sp_container_driver *driver = (struct sp_container_driver *)base;
    if (!driver)
        return;
    sp_criu_trial_end(driver);
    sp_container_parts_clear(driver);
    sp_images_free(driver->images);
    g_mutex_clear(&driver->lock);
    g_free(driver);
}

static const struct sp_driver_ops ops = {
    .tier = SP_CONTAINER_TIER,
    .probe = sp_container_probe,
    .prepare = prepare,
    .forget_template = forget_template,
    .create = sp_container_create,
    .adopt = sp_container_adopt,
    .destroy = sp_container_destroy,
    .connect_agent = sp_container_connect,
    .pidfd = pidfd,
    .pause = sp_container_pause,
    .resume = sp_container_resume,
    .can_save_memory = sp_container_can_save_memory,
    .save_begin = sp_container_save_begin,
    .save_capture = sp_container_save_capture,
    .save_finish = sp_container_save_finish,
    .save_free = sp_container_save_free,
    .check_saved = sp_container_check_saved,
    .claim = sp_container_claim,
    .memory_wants_no_link = true,
    .max_event_data = MAX_EVENT_DATA,
    .ready_command = SP_READY_COMMAND,
    .instance_free = sp_container_instance_free,
    .driver_free = driver_free,
};

struct sp_driver *sp_driver_container_new(const struct sp_driver_env *env, GError **error)
{
    struct sp_container_driver *driver = g_new0(struct sp_container_driver, 1);
    driver->base.ops = &ops;
    driver->env = *env;
    driver->images = sp_images_new(env->state_dir);
    driver->seccomp_fd = -1;
    for (unsigned i = 0; i < SP_CONTAINER_IDMAPS; i++)
        driver->idmaps[i].fd = -1;
    g_mutex_init(&driver->lock);
    g_mutex_init(&driver->trial.lock);
    g_cond_init(&driver->trial.done);
    return &driver->base;
}
