/*
 * The making of a boot image: a template booted once, warmed up, and saved whole.
 *
 * <template_dir>/vm/<key>/ holds memory (sparse, the guest's RAM), state (QEMU's devices), disk
 * (sparse, the writable disk) and manifest.json; all of the same instant. It appears by rename when
 * it is complete and on disk. Warm-up: the template's own ready command must succeed; then a shell,
 * Python and Node are run if they are there, so that their files are in the guest's page cache.
 */
#pragma once

#include "driver/microvm/private.h"

struct sp_boot_build {
    const char *template_dir;
    const struct sp_boot_identity *identity;
    const struct sp_vm_host *host;
    const struct sp_guest *guest;
    sp_progress_fn progress; /* may be NULL */
    void *user;
};

/* Path of the image with this key; it need not exist. Free with g_free(). */
char *sp_boot_image_path(const char *template_dir, const char *key);
/* Whether it exists, whole. */
bool sp_boot_image_exists(const char *path);

/* Makes the image unless it is there. Callers with the same key wait for each other, also across
 * processes. Minutes at worst. */
bool sp_boot_image_build(struct sp_microvm *vm, const struct sp_boot_build *build, GError **error);

/* Removes an image that turned out to be damaged. */
bool sp_boot_image_remove(const char *path, GError **error);
