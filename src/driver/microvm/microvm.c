/* The driver of the microVM tier: what is not about one VM. */
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/microvm/accel.h"
#include "driver/microvm/boot_store.h"
#include "driver/microvm/instance.h"

#define QEMU "qemu-system-x86_64"
#define KILL_TIMEOUT_MS 5000

struct sp_guest *sp_microvm_guest(struct sp_microvm *vm, GError **error)
{
    g_mutex_lock(&vm->host_lock);
    if (vm->guest && !sp_guest_is_current(vm->guest, vm->env->guest_dir, vm->env->agent_path))
        g_clear_pointer(&vm->guest, sp_guest_unref);
    if (!vm->guest)
        vm->guest = sp_guest_load(vm->env->guest_dir, vm->env->agent_path, error);
    struct sp_guest *guest = vm->guest ? sp_guest_ref(vm->guest) : NULL;
    g_mutex_unlock(&vm->host_lock);
    return guest;
}

struct sp_vm_host *sp_microvm_host(struct sp_microvm *vm, GError **error)
{
    struct sp_guest *guest = sp_microvm_guest(vm, error);
    if (!guest)
        return NULL;
    g_mutex_lock(&vm->host_lock);
    if (!vm->host)
        vm->host = sp_accel_find(vm, guest, error);
    if (vm->host)
        g_atomic_ref_count_inc(&vm->host->refs);
    struct sp_vm_host *host = vm->host;
    g_mutex_unlock(&vm->host_lock);
    sp_guest_unref(guest);
    return host;
}

static void probe(struct sp_driver *driver, struct sp_tier_status *ret_status)
{
    g_autoptr(GError) why = NULL;
    struct sp_vm_host *host = sp_microvm_host((struct sp_microvm *)driver, &why);
    ret_status->available = host != NULL;
    ret_status->detail = g_strdup(host ? host->detail : why->message);
    sp_vm_host_unref(host);
}

static bool prepare(struct sp_driver *driver, const char *template_dir,
                    const struct sp_shape *shape, sp_progress_fn progress, void *user,
                    GError **error)
{
    return sp_boot_store_prepare((struct sp_microvm *)driver, template_dir, shape, progress, user,
                                 error);
}

static bool forget_template(struct sp_driver *driver, const char *template_dir, GError **error)
{
    sp_boot_store_forget((struct sp_microvm *)driver, template_dir);
    return true;
}

static void driver_free(struct sp_driver *driver)
{
    struct sp_microvm *vm = (struct sp_microvm *)driver;
    if (!vm)
        return;
    g_hash_table_unref(vm->images);
    sp_guest_unref(vm->guest);
    sp_vm_host_unref(vm->host);
    if (vm->cgroups)
        sp_cgroups_free(vm->cgroups);
    g_mutex_clear(&vm->host_lock);
    g_mutex_clear(&vm->images_lock);
    g_free(vm->qemu_path);
    g_free(vm);
}

static const struct sp_driver_ops ops = {
    .tier = "microvm",
    .probe = probe,
    .prepare = prepare,
    .forget_template = forget_template,
    .create = sp_microvm_create,
    .adopt = sp_microvm_adopt,
    .destroy = sp_microvm_destroy,
    .connect_agent = sp_microvm_connect_agent,
    .pidfd = sp_microvm_pidfd,
    .needs_clock_and_entropy = true,
    .agent_sets_pids = true,
    .max_event_data = 16384,
    .ready_command = SP_READY_COMMAND,
    .instance_free = sp_microvm_instance_free,
    .driver_free = driver_free,
};

/* Builders and trials of a worker that was killed: nobody else knows of them. */
static void kill_leftovers(struct sp_microvm *vm)
{
    g_auto(GStrv) names = sp_cgroups_list(vm->cgroups);
    for (char **name = names; name && *name; name++) {
        if (!g_str_has_prefix(*name, "vm-build-") && strcmp(*name, "vm-trial") != 0)
            continue;
        struct sp_cgroup *cgroup = sp_cgroup_new(vm->cgroups, *name);
        if (sp_cgroup_kill(cgroup, KILL_TIMEOUT_MS, NULL))
            sp_cgroup_remove(cgroup, KILL_TIMEOUT_MS, NULL);
        sp_cgroup_free(cgroup);
    }
}

struct sp_driver *sp_driver_microvm_new(const struct sp_driver_env *env, GError **error)
{
    struct sp_microvm *vm = g_new0(struct sp_microvm, 1);
    vm->base.ops = &ops;
    vm->env = env;
    g_mutex_init(&vm->host_lock);
    g_mutex_init(&vm->images_lock);
    vm->images =
        g_hash_table_new_full(g_str_hash, g_str_equal, g_free, (GDestroyNotify)sp_boot_image_unref);
    g_autofree char *found = g_find_program_in_path(QEMU);
    vm->qemu_path = found ? realpath(found, NULL) : NULL;
    vm->cgroups = sp_cgroups_open(NULL, env->cgroup_root, error);
    if (!vm->cgroups) {
        driver_free(&vm->base);
        return NULL;
    }
    kill_leftovers(vm);
    return &vm->base;
}
