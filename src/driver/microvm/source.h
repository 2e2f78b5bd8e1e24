/*
 * What a VM is made from: a boot image, a saved form with memory, or a saved disk.
 *
 * | way   | the RAM that QEMU maps            | then                                    |
 * | IMAGE | the boot image's                  | its state is loaded                     |
 * | DELTA | the form's base                   | the delta is written in, state loaded   |
 * | COPY  | base and delta together, shared   | state loaded                            |
 * | BOOT  | zeros                             | the guest kernel boots                  |
 */
#pragma once

#include "driver/microvm/boot_store.h"
#include "driver/microvm/form.h"
#include "driver/microvm/ram.h"

enum sp_vm_way { SP_WAY_IMAGE, SP_WAY_DELTA, SP_WAY_COPY, SP_WAY_BOOT };

struct sp_vm_source {
    enum sp_vm_way way;
    struct sp_vm_host *host;
    struct sp_boot_image *image; /* IMAGE only */
    struct sp_guest *guest;      /* BOOT only */
    bool has_form;
    struct sp_form form;
    struct sp_ram *ram;
    struct sp_vm_facts facts; /* name is not set */
    char *disk_path;          /* to be cloned */
    char *base_path;          /* to be linked; NULL: no base */
};

/* Checks everything about the spec and its saved form that can be checked, and opens what QEMU
 * starts with. Of a form that is to be copied only the base is: sp_vm_source_merge() does the rest.
 */
bool sp_vm_source_open(struct sp_microvm *vm, const struct sp_driver_spec *spec,
                       struct sp_vm_source *ret, GError **error);
/* DELTA becomes COPY: base and delta together, made once for all copies of the form and kept as
 * copies.h says. Verifies the form, disk and all. */
bool sp_vm_source_merge(struct sp_microvm *vm, struct sp_vm_source *source, GError **error);
/* Makes base and delta of a form that was just saved, which are together in the memfd fd (taken
 * over), known to sp_vm_source_merge(). */
void sp_vm_source_offer(struct sp_microvm *vm, const struct sp_saved_manifest *manifest,
                        const char *saved_dir, int fd);
/* A description of the devices' state with an offset of its own; verified. */
int sp_vm_source_state(const struct sp_vm_source *source, GError **error);
void sp_vm_source_clear(struct sp_vm_source *source);
