#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/time.h"
#include "disk/layer.h"
#include "disk/saved.h"
#include "driver/container/container.h"
#include "driver/container/criu.h"
#include "os/mount.h"

#define NOFILE_MAX 524288

/* One create() under way: what was made so far. */
struct create {
    struct sp_container_driver *driver;
    const struct sp_driver_spec *spec;
    const char *name; /* of cgroup and layer */
    struct sp_record record;
    struct sp_cgroup *cgroup;
    struct sp_container_fds fds;
    bool has_memory; /* the saved form goes on where it was */
    pid_t pid;
    int pidfd;
    sp_step_fn step;
    void *user;
    int64_t last_us;
};

static void report(struct create *c, const char *step)
{
    int64_t now = sp_time_monotonic_us();
    if (c->step)
        c->step(c->user, step, now - c->last_us);
    c->last_us = now;
}

/* A failed create() removes what the record names: never begin on someone else's. */
static bool check_new(const struct sp_driver_spec *spec, GError **error)
{
    g_autofree char *path = g_build_filename(spec->run_dir, SP_RECORD_FILE, NULL);
    if (access(path, F_OK) < 0 && errno == ENOENT)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_CONFLICT, "create %s: %s exists", spec->id, path);
    return false;
}

/* The saved form, if any, is one of this tier that can be used so. */
static bool check_form(struct create *c, GError **error)
{
    if (!c->spec->saved_dir)
        return true;
    struct sp_saved_manifest manifest;
    if (!sp_saved_load(c->spec->saved_dir, &manifest, error))
        return false;
    bool ok = sp_container_check_form(&c->driver->base, &manifest, c->spec->saved_use,
                                      c->spec->slot, error);
    c->has_memory = manifest.memory;
    sp_saved_manifest_clear(&manifest);
    if (!ok)
        g_prefix_error(error, "create %s: ", c->spec->id);
    return ok;
}

/* The intent: everything that will be made can be found from this. */
static bool record_intent(struct create *c, GError **error)
{
    c->record = (struct sp_record){
        .id = g_strdup(c->spec->id),
        .tier = g_strdup(SP_CONTAINER_TIER),
        .template_digest = g_strdup(c->spec->template_digest),
        .cgroup = g_strdup(c->name),
        .slot = c->spec->slot,
    };
    sp_container_set_facts(&c->record, c->name, &c->spec->shape);
    return sp_record_save(c->spec->run_dir, &c->record, error);
}

static bool make_cgroup(struct create *c, GError **error)
{
    struct sp_cgroups *cgroups = sp_container_cgroups(c->driver, error);
    if (!cgroups)
        return false;
    const struct sp_shape *shape = &c->spec->shape;
    const struct sp_cgroup_limits limits = {
        .memory_bytes = shape->memory_mb << 20, .pids = shape->pids, .cpus = shape->cpus};
    uint32_t uid = SP_SLOT_UID(c->spec->slot);
    c->cgroup = sp_cgroup_new(cgroups, c->record.cgroup);
    if (!sp_cgroup_create(c->cgroup, &limits, error) ||
        !sp_cgroup_delegate(c->cgroup, uid, uid, error))
        return false;
    if (sp_cgroups_kind(cgroups) == SP_CGROUP_V1)
        return true;
    /* A mount whose top is this group: the agent can go nowhere else from it. */
    SP_CLEANUP(sp_close_fdp) int dir = sp_cgroup_open_dir(c->cgroup, error);
    c->fds.cgroup = dir < 0 ? -1 : sp_mount_clone(dir, "", false, error);
    c->fds.oom = c->fds.cgroup < 0 ? -1 : sp_cgroup_open_oom(c->cgroup, error);
    c->fds.has_cgroup = c->fds.oom >= 0;
    return c->fds.has_cgroup &&
           sp_mount_set(c->fds.cgroup, SP_ATTR_NOSUID | SP_ATTR_NODEV | SP_ATTR_NOEXEC, -1, error);
}

static bool make_layer(struct create *c, GError **error)
{
    const struct sp_driver_spec *spec = c->spec;
    struct sp_volume *volume = c->driver->env.volume;
    uint32_t uid = SP_SLOT_UID(spec->slot);
    if (!spec->saved_dir)
        return sp_layer_create(volume, c->name, spec->shape.disk_mb, uid, error);
    g_autofree char *saved = g_build_filename(spec->saved_dir, SP_CONTAINER_SAVED_LAYER, NULL);
    return sp_layer_create_from(volume, c->name, spec->shape.disk_mb, uid, saved, error);
}

static bool make_root(struct create *c, GError **error)
{
    struct sp_container_driver *driver = c->driver;
    g_autofree char *image = sp_images_mount(driver->images, c->spec->template_dir, error);
    SP_CLEANUP(sp_close_fdp)
    int idmap = image ? sp_container_idmap(driver, c->spec->slot, error) : -1;
    if (idmap < 0)
        return false;
    g_autofree char *layer = sp_layer_path(driver->env.volume, c->name);
    struct sp_container_root root = {.image = image,
                                     .layer = layer,
                                     .run_dir = c->spec->run_dir,
                                     .idmap_fd = idmap,
                                     .map_layer = sp_layer_is_mapped(driver->env.volume),
                                     .attach = g_atomic_int_get(&driver->layers_need_attach)};
    GError *first = NULL;
    c->fds.root = sp_container_root_new(&root, &first);
    if (c->fds.root < 0 && !root.attach) {
        root.attach = true;
        c->fds.root = sp_container_root_new(&root, NULL);
        if (c->fds.root >= 0)
            g_atomic_int_set(&driver->layers_need_attach, 1);
    }
    if (c->fds.root >= 0) {
        g_clear_error(&first);
        return true;
    }
    g_propagate_error(error, first);
    return false;
}

/* /dev with the agent that was saved: its processes have that very file mapped. Mostly it is still
 * ours, which is shared. */
static int saved_dev(struct create *c, const char *folder, GError **error)
{
    g_autofree char *agent = g_build_filename(folder, SP_CRIU_AGENT, NULL);
    g_autofree char *saved = NULL, *ours = NULL;
    gsize saved_len, ours_len;
    if (!g_file_get_contents(agent, &saved, &saved_len, error) ||
        !g_file_get_contents(c->driver->env.agent_path, &ours, &ours_len, error))
        return -1;
    if (saved_len == ours_len && memcmp(saved, ours, saved_len) == 0)
        return sp_container_clone_dev(c->driver, error);
    struct sp_container_dev *dev =
        sp_container_dev_new(c->driver->env.state_dir, agent, false, error);
    return dev ? sp_container_dev_take(dev) : -1;
}

static bool restore(struct create *c, GError **error)
{
    g_autofree char *folder = g_build_filename(c->spec->saved_dir, SP_CRIU_FOLDER, NULL);
    g_autofree char *criu = sp_criu_trial_result(c->driver, 0, error);
    c->fds.dev = criu ? saved_dev(c, folder, error) : -1;
    if (c->fds.dev < 0)
        return false;
    struct sp_criu_restore what = {
        .criu = criu,
        .folder = folder,
        .run_dir = c->spec->run_dir,
        .name = c->spec->id,
        .cgroup = c->cgroup,
        .uid = SP_SLOT_UID(c->spec->slot),
        .root_fd = &c->fds.root,
        .dev_fd = &c->fds.dev,
        .cgroup_fd = &c->fds.cgroup,
        .oom_fd = &c->fds.oom,
    };
    return sp_criu_restore(c->driver->env.launcher, &what, &c->pid, &c->pidfd, error);
}

static bool start(struct create *c, GError **error)
{
    if (c->has_memory)
        return restore(c, error);
    c->fds.dev = sp_container_clone_dev(c->driver, error);
    if (c->fds.dev < 0)
        return false;
    c->fds.seccomp = sp_container_seccomp(c->driver, error);
    if (c->fds.seccomp < 0)
        return false;
    struct rlimit nofile = {.rlim_max = NOFILE_MAX};
    getrlimit(RLIMIT_NOFILE, &nofile);
    SP_CLEANUP(sp_plan_free_p)
    struct sp_plan *plan =
        sp_container_plan(c->spec, &c->fds, MIN((uint64_t)nofile.rlim_max, NOFILE_MAX));
    /* They are the plan's now. */
    c->fds.root = c->fds.dev = c->fds.cgroup = c->fds.oom = -1;
    return sp_plan_join_cgroup(plan, c->cgroup, error) &&
           sp_launcher_spawn(c->driver->env.launcher, plan, &c->pid, &c->pidfd, error);
}

static bool record_process(struct create *c, GError **error)
{
    if (!sp_record_set_process(&c->record, c->pid, error))
        return false;
    c->record.started = true;
    return sp_record_save(c->spec->run_dir, &c->record, error);
}

static void clear(struct create *c)
{
    const int fds[] = {c->fds.root, c->fds.dev, c->fds.cgroup, c->fds.oom, c->pidfd};
    for (size_t i = 0; i < G_N_ELEMENTS(fds); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (c->cgroup)
        sp_cgroup_free(c->cgroup);
    sp_record_clear(&c->record);
}

struct sp_instance *sp_container_create(struct sp_driver *base, const struct sp_driver_spec *spec,
                                        sp_step_fn step, void *user, GError **error)
{
    static const struct {
        const char *name;
        bool (*run)(struct create *, GError **);
    } stages[] = {{"record", record_intent}, {"cgroup", make_cgroup}, {"layer", make_layer},
                  {"root", make_root},       {"start", start},        {"recorded", record_process}};
    struct create c = {
        .driver = (struct sp_container_driver *)base,
        .spec = spec,
        .name = spec->name ? spec->name : spec->id,
        .fds = {.root = -1, .dev = -1, .cgroup = -1, .oom = -1, .seccomp = -1},
        .pidfd = -1,
        .step = step,
        .user = user,
        .last_us = sp_time_monotonic_us(),
    };
    if (!check_new(spec, error) || !check_form(&c, error))
        return NULL;
    struct sp_container *container = NULL;
    size_t i = 0;
    while (i < G_N_ELEMENTS(stages) && stages[i].run(&c, error))
        report(&c, stages[i++].name);
    if (i == G_N_ELEMENTS(stages)) {
        container =
            sp_container_instance_new(base, spec->run_dir, sp_steal_fd(&c.pidfd), &c.record);
    } else {
        g_prefix_error(error, "create %s (%s): ", spec->id, stages[i].name);
    }
    clear(&c); /* the fds first: they hold the layer and the cgroup */
    if (!container) {
        GError *also = NULL;
        if (!sp_container_destroy(base, spec->run_dir, &also)) {
            g_prefix_error(error, "(and then: %s) ", also->message);
            g_error_free(also);
        }
    }
    return container ? &container->base : NULL;
}
