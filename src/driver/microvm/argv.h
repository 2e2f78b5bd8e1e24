/*
 * The command line of QEMU as a pure function.
 *
 * Device set, machine and CPU are part of the format of a boot image: any change here needs a new
 * SP_BOOT_FORMAT (driver/microvm/boot_key.h). Measurements behind the choices: docs/microvm.md.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

/* Raise it when the machine or its devices change in a way that a saved state cannot be loaded any
 * more. (A boot image is bound to more: SP_BOOT_FORMAT.) */
#define SP_VM_MACHINE 1

enum sp_accel { SP_ACCEL_TCG, SP_ACCEL_KVM };

/* fd numbers of the VMM process; 0 and 1 are /dev/null. */
enum {
    SP_VMM_FD_LOG = 2,
    SP_VMM_FD_MEMORY = 3, /* RAM; opened again through /proc/self/fd */
    SP_VMM_FD_QMP = 4,    /* listening sockets */
    SP_VMM_FD_AGENT = 5,
    SP_VMM_FD_ROOT = 6,   /* image.erofs, O_RDONLY */
    SP_VMM_FD_RW = 7,     /* the writable disk, O_RDWR */
    SP_VMM_FD_KERNEL = 8, /* boot only; read through /proc/self/fd */
    SP_VMM_FD_INITRAMFS = 9,
    SP_VMM_FD_LIBRARY = 10, /* once it is loaded: a userfaultfd (uffd/uffd_open.c) */
};

struct sp_qemu_config {
    const char *qemu_path;
    enum sp_accel accel;
    int64_t memory_mb;
    unsigned vcpus;
    bool boot;        /* boot the kernel; else paused, waiting for a saved state */
    bool shared_ram;  /* the guest writes into the memfd: while a boot image is made */
    unsigned tsc_khz; /* boot with TCG only: rate of the host's TSC */
};

/* The -cpu argument; with KVM the guest sees the host's CPU. Borrowed. */
const char *sp_qemu_cpu(enum sp_accel accel);
/* "tcg" or "kvm". Borrowed. */
const char *sp_accel_name(enum sp_accel accel);

/* Kernel command line without the TSC rate. Borrowed. */
const char *sp_qemu_kernel_options(enum sp_accel accel);

/* NULL-terminated; free with g_strfreev(). */
char **sp_qemu_argv(const struct sp_qemu_config *config);

/* Host memory that the VMM may need beyond the guest's RAM (heap, translated code, page tables),
 * bytes. */
int64_t sp_qemu_overhead_bytes(enum sp_accel accel, int64_t memory_mb);
