/*
 * The files of a VM in the volume's layers/: <name>.disk, and hard links to what its RAM is made
 * of, so that it can be saved whatever becomes of its boot image or saved form.
 */
#pragma once

#include "driver/microvm/facts.h"
#include "driver/microvm/private.h"

#define SP_VM_DISK "disk"
#define SP_VM_BASE "memory" /* the memory file of the boot image */
#define SP_VM_DELTA "delta" /* of the saved form that it is a copy of … */
#define SP_VM_MAP "map"     /* … and its map */

/* Absolute path; free with g_free(). */
char *sp_vm_file(const struct sp_microvm *vm, const char *name, const char *what);
/* Opens it, close-on-exec; -1 on failure. */
int sp_vm_file_open(const struct sp_microvm *vm, const char *name, const char *what, int flags,
                    GError **error);
/* A hard link to `from`. */
bool sp_vm_file_link(const struct sp_microvm *vm, const char *name, const char *what,
                     const char *from, GError **error);
/* A copy of `from` that shares its blocks, mode 0600. */
bool sp_vm_file_clone(const struct sp_microvm *vm, const char *name, const char *what,
                      const char *from, GError **error);
/* Removes all of a VM's files; true when there are none. */
bool sp_vm_files_remove(const struct sp_microvm *vm, const char *name, GError **error);
