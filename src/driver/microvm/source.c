#include "driver/microvm/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/microvm/copies.h"
#include "driver/microvm/delta.h"
#include "driver/microvm/memory.h"
#include "driver/microvm/resources.h"
#include "os/cleanup.h"

#define MIB INT64_C(1048576)

void sp_vm_source_clear(struct sp_vm_source *source)
{
    sp_boot_image_unref(source->image);
    sp_guest_unref(source->guest);
    sp_vm_host_unref(source->host);
    sp_ram_unref(source->ram);
    if (source->has_form)
        sp_form_clear(&source->form);
    sp_vm_facts_clear(&source->facts);
    g_free(source->disk_path);
    g_free(source->base_path);
    *source = (struct sp_vm_source){0};
}

static bool open_image(struct sp_microvm *vm, const struct sp_driver_spec *spec,
                       struct sp_vm_source *source, GError **error)
{
    struct sp_boot_image *image = sp_boot_store_get(vm, spec->template_dir, &spec->shape, error);
    if (!image)
        return false;
    source->way = SP_WAY_IMAGE;
    source->image = image;
    source->host = image->host;
    g_atomic_ref_count_inc(&image->host->refs);
    source->ram = sp_ram_ref(image->ram);
    source->disk_path = g_strdup(image->disk_path);
    source->base_path = g_build_filename(image->path, "memory", NULL);
    source->facts.accel = image->identity.accel;
    source->facts.base_data_bytes = image->memory_data_bytes;
    g_strlcpy(source->facts.base_sha256, image->memory_sha256, SP_HASH_HEX);
    g_strlcpy(source->facts.kernel_sha256, image->identity.kernel_sha256, SP_HASH_HEX);
    g_strlcpy(source->facts.initramfs_sha256, image->identity.initramfs_sha256, SP_HASH_HEX);
    return true;
}

/* --- saved forms --- */

static bool check_size(const char *what, int64_t saved, int64_t wanted, GError **error)
{
    if (saved == wanted)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                "the form was saved with %s %" G_GINT64_FORMAT ", asked for is %" G_GINT64_FORMAT,
                what, saved, wanted);
    return false;
}

static bool check_spec(const struct sp_form *form, const struct sp_driver_spec *spec,
                       GError **error)
{
    const struct sp_saved_manifest *m = &form->manifest;
    if (strcmp(m->template_digest, spec->template_digest) != 0) {
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                    "the form was saved with template %s, asked for is %s", m->template_digest,
                    spec->template_digest);
        return false;
    }
    return check_size("disk_mb", m->disk_mb, spec->shape.disk_mb, error) &&
           (!m->memory ||
            (check_size("memory_mb", m->memory_mb, spec->shape.memory_mb, error) &&
             check_size("CPUs", form->machine.vcpus, sp_boot_vcpus(&spec->shape), error)));
}

static bool fill_base(int fd, void *user, GError **error)
{
    const struct sp_form *form = user;
    struct sp_memory_copied seen;
    SP_CLEANUP(sp_close_fdp) int base_fd = sp_form_open(form, SP_FORM_BASE, error);
    return base_fd >= 0 && sp_memory_copy(base_fd, fd, &seen, error) &&
           sp_form_compare(form, SP_FORM_BASE, &seen, error);
}

static struct sp_ram *open_base(struct sp_microvm *vm, struct sp_form *form, GError **error)
{
    int64_t bytes = form->manifest.memory_mb * MIB;
    const struct sp_saved_file *base = sp_saved_manifest_file(&form->manifest, SP_FORM_BASE);
    if (!base) {
        g_autofree char *empty = sp_ram_key_empty(bytes);
        return sp_ram_get(vm, empty, bytes, NULL, NULL, error);
    }
    g_autofree char *key = sp_ram_key_of_file(base->sha256);
    return sp_ram_get(vm, key, bytes, fill_base, form, error);
}

static bool open_memory(struct sp_microvm *vm, struct sp_vm_source *source, GError **error)
{
    struct sp_form *form = &source->form;
    const struct sp_saved_file *base = sp_saved_manifest_file(&form->manifest, SP_FORM_BASE);
    if (!sp_form_check(form, source->host, error) || !sp_form_verify(form, SP_FORM_MAP, error))
        return false;
    source->way = SP_WAY_DELTA;
    g_strlcpy(source->facts.kernel_sha256, form->machine.kernel_sha256, SP_HASH_HEX);
    g_strlcpy(source->facts.initramfs_sha256, form->machine.initramfs_sha256, SP_HASH_HEX);
    if (base) {
        g_strlcpy(source->facts.base_sha256, base->sha256, SP_HASH_HEX);
        source->facts.base_data_bytes = base->data_bytes;
        source->base_path = g_build_filename(form->dir, SP_FORM_BASE, NULL);
    }
    source->ram = open_base(vm, form, error);
    return source->ram != NULL;
}

static bool open_cold(struct sp_microvm *vm, const struct sp_driver_spec *spec,
                      struct sp_vm_source *source, GError **error)
{
    int64_t bytes = spec->shape.memory_mb * MIB;
    g_autofree char *key = sp_ram_key_empty(bytes);
    source->way = SP_WAY_BOOT;
    source->guest = sp_microvm_guest(vm, error);
    if (!source->guest)
        return false;
    g_strlcpy(source->facts.kernel_sha256, source->guest->kernel_sha256, SP_HASH_HEX);
    g_strlcpy(source->facts.initramfs_sha256, source->guest->initramfs_sha256, SP_HASH_HEX);
    source->ram = sp_ram_get(vm, key, bytes, NULL, NULL, error);
    return source->ram != NULL;
}

static bool open_form(struct sp_microvm *vm, const struct sp_driver_spec *spec,
                      struct sp_vm_source *source, GError **error)
{
    source->has_form = sp_form_load(spec->saved_dir, &source->form, error);
    if (!source->has_form || !check_spec(&source->form, spec, error))
        return false;
    source->host = sp_microvm_host(vm, error);
    if (!source->host)
        return false;
    source->facts.accel = source->host->accel;
    source->disk_path = g_build_filename(spec->saved_dir, SP_FORM_DISK, NULL);
    return source->form.manifest.memory ? open_memory(vm, source, error)
                                        : open_cold(vm, spec, source, error);
}

bool sp_vm_source_open(struct sp_microvm *vm, const struct sp_driver_spec *spec,
                       struct sp_vm_source *ret, GError **error)
{
    struct sp_vm_source source = {0};
    bool ok = spec->saved_dir ? open_form(vm, spec, &source, error)
                              : open_image(vm, spec, &source, error);
    if (!ok) {
        sp_vm_source_clear(&source);
        return false;
    }
    source.facts.shape = spec->shape;
    source.facts.vcpus = sp_boot_vcpus(&spec->shape);
    *ret = source;
    return true;
}

/* --- the state --- */

/* A damaged state must not reach QEMU: it is small, so it is verified before. */
int sp_vm_source_state(const struct sp_vm_source *source, GError **error)
{
    char path[64];
    if (source->has_form) {
        const struct sp_saved_file *file =
            sp_saved_manifest_file(&source->form.manifest, SP_FORM_STATE);
        if (!file || file->size_bytes > SP_FORM_STATE_MAX_BYTES) {
            g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                        "the saved form is damaged: no state");
            return -1;
        }
        return sp_form_verify(&source->form, SP_FORM_STATE, error)
                   ? sp_form_open(&source->form, SP_FORM_STATE, error)
                   : -1;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", source->image->state_fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open saved state");
    return fd;
}

/* --- copies --- */

struct merge {
    struct sp_vm_source *source;
    int base_fd;
};

static bool merge_delta(const struct sp_form *form, int fd, GError **error)
{
    struct sp_page_map map;
    SP_CLEANUP(sp_close_fdp) int map_fd = sp_form_open(form, SP_FORM_MAP, error);
    SP_CLEANUP(sp_close_fdp) int delta_fd = sp_form_open(form, SP_FORM_DELTA, error);
    if (map_fd < 0 || delta_fd < 0 ||
        !sp_page_map_load(&map, map_fd, form->manifest.memory_mb * MIB, error))
        return false;
    bool ok = sp_delta_apply_to_file(&map, delta_fd, fd, true, error);
    sp_page_map_clear(&map);
    return ok;
}

static bool fill_merged(int fd, void *user, GError **error)
{
    const struct merge *m = user;
    const struct sp_form *form = &m->source->form;
    const struct sp_saved_file *disk = sp_saved_manifest_file(&form->manifest, SP_FORM_DISK);
    return sp_memory_copy(m->base_fd, fd, NULL, error) &&
           sp_form_verify(form, SP_FORM_DELTA, error) && merge_delta(form, fd, error) &&
           (!*disk->sha256 || sp_form_verify(form, SP_FORM_DISK, error));
}

static char *merged_key(const char *base_key, const char *delta_sha256, const char *map_sha256)
{
    return g_strdup_printf("%s+%s+%s", base_key, delta_sha256, map_sha256);
}

bool sp_vm_source_merge(struct sp_microvm *vm, struct sp_vm_source *source, GError **error)
{
    const struct sp_saved_manifest *manifest = &source->form.manifest;
    const struct sp_saved_file *delta = sp_saved_manifest_file(manifest, SP_FORM_DELTA);
    const struct sp_saved_file *map = sp_saved_manifest_file(manifest, SP_FORM_MAP);
    struct merge merge = {source, source->ram->fd};
    g_autofree char *key = merged_key(source->ram->key, delta->sha256, map->sha256);
    struct sp_ram *ram = sp_ram_get(vm, key, manifest->memory_mb * MIB, fill_merged, &merge, error);
    if (!ram)
        return false;
    sp_copies_keep(vm, source->form.dir, ram, sp_copies_budget(vm));
    sp_ram_unref(source->ram);
    source->ram = ram;
    source->way = SP_WAY_COPY;
    source->facts.has_delta = true;
    return true;
}

void sp_vm_source_offer(struct sp_microvm *vm, const struct sp_saved_manifest *manifest,
                        const char *saved_dir, int fd)
{
    const struct sp_saved_file *base = sp_saved_manifest_file(manifest, SP_FORM_BASE);
    const struct sp_saved_file *delta = sp_saved_manifest_file(manifest, SP_FORM_DELTA);
    const struct sp_saved_file *map = sp_saved_manifest_file(manifest, SP_FORM_MAP);
    g_autofree char *base_key =
        base ? sp_ram_key_of_file(base->sha256) : sp_ram_key_empty(manifest->memory_mb * MIB);
    g_autofree char *key = merged_key(base_key, delta->sha256, map->sha256);
    struct sp_ram *ram = sp_ram_put(vm, key, fd, NULL);
    if (ram)
        sp_copies_keep(vm, saved_dir, ram, sp_copies_budget(vm));
    sp_ram_unref(ram);
}
