/*
 * What a boot image is bound to, and the name that follows from it.
 *
 * A saved VM can only go on in a VMM of the same build with the same devices, CPU, sizes and clock
 * rate; all of that goes into the key, so an image that does not fit is never found rather than
 * tried.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#include "base/ids.h"
#include "driver/driver.h"
#include "driver/microvm/argv.h"

/* Raise it when the machine, its devices, the saved files or the warm-up change. */
#define SP_BOOT_FORMAT 1

#define SP_BOOT_KEY_MAX 33 /* with the NUL */

struct sp_boot_identity {
    const char *qemu_version;
    enum sp_accel accel;
    const char *host_cpu; /* KVM: model and features of the host's CPU; "" with TCG */
    unsigned tsc_mhz;     /* rounded, so that two measurements agree */
    const char *kernel_sha256;
    const char *initramfs_sha256;
    int64_t memory_mb;
    unsigned vcpus;
    int64_t disk_mb;
};

/* Whole CPUs that a shape needs: the fraction is the cgroup's business. */
unsigned sp_boot_vcpus(const struct sp_shape *shape);

/* All of the identity as lines "name=value". Free with g_free(). */
char *sp_boot_identity_text(const struct sp_boot_identity *identity);
/* 32 hex digits. */
void sp_boot_key(const struct sp_boot_identity *identity, char ret_key[SP_BOOT_KEY_MAX]);
