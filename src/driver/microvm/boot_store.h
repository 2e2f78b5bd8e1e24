/*
 * Boot images in use: verified once, their RAM in one sealed memfd a worker.
 *
 * An image stays open until the driver ends, its template is forgotten or its directory is gone.
 */
#pragma once

#include "driver/microvm/private.h"
#include "driver/microvm/ram.h"

struct sp_boot_image {
    gatomicrefcount refs;
    char *path;
    char key[SP_BOOT_KEY_MAX];
    struct sp_boot_identity identity; /* its strings belong to host and guest below */
    struct sp_vm_host *host;
    struct sp_guest *guest;
    struct sp_ram *ram;
    char memory_sha256[SP_HASH_HEX]; /* of the file `memory` */
    int64_t memory_data_bytes;
    int state_fd;    /* sealed memfd: open it again (/proc/self/fd) for an offset of one's own */
    char *disk_path; /* to be cloned */
};

/* Makes the image of this template and shape if need be (minutes), without opening it. */
bool sp_boot_store_prepare(struct sp_microvm *vm, const char *template_dir,
                           const struct sp_shape *shape, sp_progress_fn progress, void *user,
                           GError **error);

/* The open image; makes and opens it if need be. A damaged one is removed and made again. Release
 * with sp_boot_image_unref(). */
struct sp_boot_image *sp_boot_store_get(struct sp_microvm *vm, const char *template_dir,
                                        const struct sp_shape *shape, GError **error);
/* Closes the images of a template (those in use: with their last user), so that their RAM is free.
 */
void sp_boot_store_forget(struct sp_microvm *vm, const char *template_dir);
void sp_boot_image_unref(struct sp_boot_image *image); /* NULL is fine */
