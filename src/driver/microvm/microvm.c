/* The driver of the microVM tier: what is not about one VM. */
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/microvm/accel.h"
#include "driver/microvm/boot_store.h"
#include "driver/microvm/copies.h"
#include "driver/microvm/form.h"
#include "driver/microvm/guest_ram.h"
#include "driver/microvm/instance.h"
#include "driver/microvm/prestart.h"
#include "driver/launcher.h"
#include "driver/microvm/track.h"

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

/* With what is missing for short pauses, if anything is. */
static char *describe(const struct sp_vm_host *host)
{
    g_autoptr(GError) why = NULL;
    if (sp_tracker_possible(&why))
        return g_strdup(host->detail);
    return g_strdup_printf("%s; a fork stops its origin for longer: %s", host->detail,
                           why->message);
}

static void probe(struct sp_driver *driver, struct sp_tier_status *ret_status)
{
    g_autoptr(GError) why = NULL;
    struct sp_vm_host *host = sp_microvm_host((struct sp_microvm *)driver, &why);
    ret_status->available = host != NULL;
    ret_status->detail = host ? describe(host) : g_strdup(why->message);
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

static bool can_save_memory(struct sp_driver *driver, char **ret_reason)
{
    struct sp_microvm *vm = (struct sp_microvm *)driver;
    g_autoptr(GError) why = NULL;
    /* The trial of the accelerator has saved a state. */
    struct sp_vm_host *host = sp_microvm_host(vm, &why);
    bool ok = host && sp_guest_ram_may(sp_launcher_pid(vm->env->launcher), &why);
    sp_vm_host_unref(host);
    if (ret_reason)
        *ret_reason = ok ? NULL : g_strdup(why->message);
    return ok;
}

static bool check_saved(struct sp_driver *driver, const char *saved_dir, GError **error)
{
    struct sp_form form;
    if (!sp_form_load(saved_dir, &form, error))
        return false;
    struct sp_vm_host *host = sp_microvm_host((struct sp_microvm *)driver, error);
    bool ok = host && sp_form_check(&form, host, error);
    sp_vm_host_unref(host);
    sp_form_clear(&form);
    return ok;
}

static void forget_saved(struct sp_driver *driver, const char *saved_dir)
{
    sp_copies_forget((struct sp_microvm *)driver, saved_dir);
}

static void driver_free(struct sp_driver *driver)
{
    struct sp_microvm *vm = (struct sp_microvm *)driver;
    if (!vm)
        return;
    sp_prestart_end(vm);
    g_ptr_array_unref(vm->prestarted);
    g_hash_table_unref(vm->images);
    g_hash_table_unref(vm->copies);
    g_hash_table_unref(vm->rams); /* VMs that this process still holds handles of keep theirs */
    sp_guest_unref(vm->guest);
    sp_vm_host_unref(vm->host);
    if (vm->cgroups)
        sp_cgroups_free(vm->cgroups);
    g_mutex_clear(&vm->host_lock);
    g_mutex_clear(&vm->images_lock);
    g_mutex_clear(&vm->copies_lock);
    g_mutex_clear(&vm->rams_lock);
    g_mutex_clear(&vm->prestarted_lock);
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
    .slot = sp_microvm_slot,
    .pause = sp_microvm_pause,
    .resume = sp_microvm_resume,
    .can_save_memory = can_save_memory,
    .save_begin = sp_microvm_save_begin,
    .save_capture = sp_microvm_save_capture,
    .save_finish = sp_microvm_save_finish,
    .save_free = sp_microvm_save_free,
    .forget_saved = forget_saved,
    .check_saved = check_saved,
    .claim = sp_microvm_claim,
    .prestart = sp_microvm_prestart,
    .end_prestarted = sp_microvm_end_prestarted,
    .prestarted = sp_microvm_prestarted,
    .agent_holds = true,
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
    g_mutex_init(&vm->copies_lock);
    g_mutex_init(&vm->rams_lock);
    g_mutex_init(&vm->prestarted_lock);
    vm->prestarted = g_ptr_array_new();
    vm->rams = g_hash_table_new(g_str_hash, g_str_equal);
    vm->copies = sp_copies_new();
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
