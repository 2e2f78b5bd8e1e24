/*
 * A saved form of a VM (disk/saved.h) as this tier reads it: docs/saved-format.md.
 *
 * With memory: memory.delta, memory.map, state, disk, and base unless the VM was booted cold.
 * Without: only disk.
 */
#pragma once

#include "disk/saved.h"
#include "driver/microvm/facts.h"
#include "driver/microvm/private.h"

#define SP_FORM_DELTA "memory.delta"
#define SP_FORM_MAP "memory.map"
#define SP_FORM_BASE "base"
#define SP_FORM_STATE "state"
#define SP_FORM_DISK "disk"
#define SP_FORM_STATE_MAX_BYTES (16 << 20) /* it is about 17 KB */

/* What a saved memory is bound to. Kernel and initramfs are inside it: only for information. */
struct sp_form_machine {
    int64_t machine; /* SP_VM_MACHINE */
    char *qemu_version, *accel, *cpu, *host_cpu;
    int64_t tsc_mhz, vcpus;
    char *kernel_sha256, *initramfs_sha256;
};

struct sp_form {
    char *dir;
    struct sp_saved_manifest manifest;
    struct sp_form_machine machine;
};

/* A new reference to the JSON of a machine as it runs on this host now. qemu_version: of the
 * running QEMU. */
json_t *sp_form_machine_json(const struct sp_vm_host *host, const char *qemu_version,
                             const struct sp_vm_facts *facts);

/* Reads the manifest and checks that the form has what it must have. Errors as sp_saved_load(). */
bool sp_form_load(const char *dir, struct sp_form *ret, GError **error);
void sp_form_clear(struct sp_form *form);
/* The memory can go on here; SP_ERROR_FAILED_PRECONDITION names what differs, and both sides. */
bool sp_form_check(const struct sp_form *form, const struct sp_vm_host *host, GError **error);

/* Opens a file of the form. */
int sp_form_open(const struct sp_form *form, const char *name, GError **error);
/* Compares content that sp_memory_copy() saw with the manifest. SP_ERROR_FAILED_PRECONDITION:
 * "damaged". A file without a hash passes. */
struct sp_memory_copied;
bool sp_form_compare(const struct sp_form *form, const char *name,
                     const struct sp_memory_copied *seen, GError **error);
/* Reads a file and compares it. */
bool sp_form_verify(const struct sp_form *form, const char *name, GError **error);
