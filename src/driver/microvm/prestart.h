/*
 * VMMs that were started ahead: QEMU waits, paused and empty, on the RAM of a boot image, with a
 * disk of the right size whose content comes later (FICLONE into it).
 *
 * Each has a run directory with a record of its own, name and slot of its own. create() takes one
 * whose RAM, template and sizes fit: it writes a record into its own run directory that names those
 * resources, moves the sockets there and removes the other directory. At each step one of the two
 * records names everything. The sandbox keeps the taken one's slot (sp_driver_ops.slot).
 */
#pragma once

#include "driver/microvm/start.h"

/* sp_driver_ops.prestart, .end_prestarted and .prestarted */
bool sp_microvm_prestart(struct sp_driver *driver, const struct sp_driver_spec *spec,
                         GError **error);
bool sp_microvm_end_prestarted(struct sp_driver *driver, const char *run_dir);
unsigned sp_microvm_prestarted(struct sp_driver *driver, const char *template_digest,
                               const struct sp_shape *shape);

/* Takes a fitting one over into start (which is only initialised) and sets facts->name; false:
 * there is none that lives. The disk holds nothing yet. */
bool sp_prestart_take(struct sp_microvm *vm, const struct sp_driver_spec *spec,
                      struct sp_vm_source *source, struct sp_vm_start *start);
/* Ends all of them. */
void sp_prestart_end(struct sp_microvm *vm);
