#include "driver/microvm/prestart.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/microvm/instance.h"
#include "driver/microvm/resources.h"
#include "driver/microvm/vmm.h"
#include "os/cleanup.h"
#include "os/pidfd.h"

#define MIB INT64_C(1048576)

struct prestarted {
    struct sp_vm_start start;
    struct sp_ram *ram;
    struct sp_vm_facts facts;
    bool dead; /* its VMM has ended: it is only to be removed */
};

static void free_prestarted(struct prestarted *p)
{
    sp_vm_start_clear(&p->start);
    sp_ram_unref(p->ram);
    sp_vm_facts_clear(&p->facts);
    g_free(p);
}

/* Removes all of it, but for the directory when that is not empty. */
static void discard(struct sp_microvm *vm, struct prestarted *p)
{
    g_autofree char *record = g_build_filename(p->start.run_dir, SP_RECORD_FILE, NULL);
    if (sp_microvm_destroy(&vm->base, p->start.run_dir, NULL)) {
        unlink(record);
        rmdir(p->start.run_dir);
    }
    free_prestarted(p);
}

static bool make_disk(struct sp_microvm *vm, const struct sp_vm_facts *facts, GError **error)
{
    SP_CLEANUP(sp_close_fdp)
    int fd = sp_vm_file_open(vm, facts->name, SP_VM_DISK, O_RDWR | O_CREAT | O_EXCL, error);
    if (fd < 0)
        return false;
    if (ftruncate(fd, facts->shape.disk_mb * MIB) == 0)
        return true;
    sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "make the disk of %s", facts->name);
    return false;
}

static bool start(struct sp_microvm *vm, const struct sp_driver_spec *spec, struct prestarted *p,
                  GError **error)
{
    struct sp_vm_source source;
    if (!sp_vm_source_open(vm, spec, &source, error))
        return false;
    source.facts.name = g_strdup(spec->name ? spec->name : spec->id);
    p->facts = source.facts;
    p->facts.name = g_strdup(source.facts.name);
    p->ram = sp_ram_ref(source.ram);
    bool ok = sp_vm_start_record(&p->start, spec, &source.facts, error) &&
              make_disk(vm, &source.facts, error) &&
              sp_vm_start_process(vm, &source, spec->template_dir, &p->start, error) &&
              sp_vm_start_greet(&p->start, error);
    sp_vm_source_clear(&source);
    return ok;
}

bool sp_microvm_prestart(struct sp_driver *driver, const struct sp_driver_spec *given,
                         GError **error)
{
    struct sp_microvm *vm = (struct sp_microvm *)driver;
    struct sp_driver_spec spec = *given;
    spec.saved_dir = NULL; /* any form will do, and none */
    struct prestarted *p = g_new0(struct prestarted, 1);
    sp_vm_start_init(&p->start, spec.run_dir);
    if (!start(vm, &spec, p, error)) {
        sp_vmm_explain(spec.run_dir, error);
        g_prefix_error(error, "prestart: ");
        sp_microvm_destroy(driver, spec.run_dir, NULL);
        free_prestarted(p);
        return false;
    }
    g_mutex_lock(&vm->prestarted_lock);
    g_ptr_array_add(vm->prestarted, p);
    g_mutex_unlock(&vm->prestarted_lock);
    return true;
}

/* --- taking --- */

static bool lives(struct prestarted *p)
{
    p->dead = p->dead || sp_pidfd_wait(p->start.pidfd, 0);
    return !p->dead;
}

static bool same_sizes(const struct sp_shape *a, const struct sp_shape *b)
{
    return a->memory_mb == b->memory_mb && a->disk_mb == b->disk_mb &&
           sp_boot_vcpus(a) == sp_boot_vcpus(b);
}

static bool fits(const struct prestarted *p, const struct sp_driver_spec *spec,
                 const struct sp_vm_source *source)
{
    return p->ram == source->ram && p->facts.accel == source->facts.accel &&
           same_sizes(&p->facts.shape, &spec->shape) &&
           g_strcmp0(p->start.record.template_digest, spec->template_digest) == 0;
}

unsigned sp_microvm_prestarted(struct sp_driver *driver, const char *template_digest,
                               const struct sp_shape *shape)
{
    struct sp_microvm *vm = (struct sp_microvm *)driver;
    unsigned n = 0;
    g_mutex_lock(&vm->prestarted_lock);
    for (guint i = 0; i < vm->prestarted->len; i++) {
        struct prestarted *p = vm->prestarted->pdata[i];
        n += lives(p) && same_sizes(&p->facts.shape, shape) &&
             g_strcmp0(p->start.record.template_digest, template_digest) == 0;
    }
    g_mutex_unlock(&vm->prestarted_lock);
    return n;
}

/* The oldest that fits, or a dead one to remove; NULL: neither. */
static struct prestarted *pick(struct sp_microvm *vm, const struct sp_driver_spec *spec,
                               const struct sp_vm_source *source)
{
    struct prestarted *found = NULL;
    g_mutex_lock(&vm->prestarted_lock);
    for (guint i = 0; !found && i < vm->prestarted->len; i++) {
        struct prestarted *p = vm->prestarted->pdata[i];
        if (!lives(p) || fits(p, spec, source)) {
            found = p;
            g_ptr_array_remove_index(vm->prestarted, i);
        }
    }
    g_mutex_unlock(&vm->prestarted_lock);
    return found;
}

bool sp_microvm_end_prestarted(struct sp_driver *driver, const char *run_dir)
{
    struct sp_microvm *vm = (struct sp_microvm *)driver;
    struct prestarted *found = NULL;
    g_mutex_lock(&vm->prestarted_lock);
    for (guint i = 0; !found && i < vm->prestarted->len; i++) {
        struct prestarted *p = vm->prestarted->pdata[i];
        if (strcmp(p->start.run_dir, run_dir) == 0)
            found = g_ptr_array_remove_index(vm->prestarted, i);
    }
    g_mutex_unlock(&vm->prestarted_lock);
    if (found)
        free_prestarted(found);
    return found != NULL;
}

static bool move_file(const char *from, const char *to, const char *name)
{
    g_autofree char *source = g_build_filename(from, name, NULL);
    g_autofree char *target = g_build_filename(to, name, NULL);
    return rename(source, target) == 0;
}

/* First a second record, then the files, then the first record goes. */
static bool move(struct prestarted *p, const struct sp_driver_spec *spec, struct sp_vm_facts *facts)
{
    static const char *const files[] = {SP_VMM_QMP, SP_VMM_AGENT, SP_VMM_LOG};
    struct sp_record *record = &p->start.record;
    g_free(record->id);
    record->id = g_strdup(spec->id);
    g_free(facts->name);
    facts->name = g_strdup(p->facts.name);
    sp_vm_facts_store(facts, record);
    if (!sp_record_save(spec->run_dir, record, NULL))
        return false;
    for (unsigned i = 0; i < G_N_ELEMENTS(files); i++) {
        if (!move_file(p->start.run_dir, spec->run_dir, files[i]))
            return false;
    }
    g_autofree char *old = g_build_filename(p->start.run_dir, SP_RECORD_FILE, NULL);
    unlink(old);
    rmdir(p->start.run_dir);
    g_free(p->start.run_dir);
    p->start.run_dir = g_strdup(spec->run_dir);
    return true;
}

/* A move that failed half-way: both directories go. */
static void give_up(struct sp_microvm *vm, const struct sp_driver_spec *spec, struct prestarted *p)
{
    g_autofree char *record = g_build_filename(spec->run_dir, SP_RECORD_FILE, NULL);
    if (sp_microvm_destroy(&vm->base, spec->run_dir, NULL))
        unlink(record);
    discard(vm, p);
}

bool sp_prestart_take(struct sp_microvm *vm, const struct sp_driver_spec *spec,
                      struct sp_vm_source *source, struct sp_vm_start *start)
{
    struct prestarted *p;
    while ((p = pick(vm, spec, source))) {
        if (p->dead) {
            discard(vm, p);
            continue;
        }
        if (!move(p, spec, &source->facts)) {
            give_up(vm, spec, p);
            continue;
        }
        sp_vm_start_clear(start);
        *start = p->start;
        sp_vm_start_init(&p->start, NULL);
        free_prestarted(p);
        return true;
    }
    return false;
}

void sp_prestart_end(struct sp_microvm *vm)
{
    for (guint i = 0; i < vm->prestarted->len; i++)
        discard(vm, vm->prestarted->pdata[i]);
    g_ptr_array_set_size(vm->prestarted, 0);
}
