/*
 * Mounts of read-only template images (erofs) for the tiers that share the host's kernel.
 *
 * <state>/run/images/<digest hex>: one mount an image, made at first use, kept while any sandbox
 * may use it, found again by a restarted worker.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>

struct sp_images;

struct sp_images *sp_images_new(const char *state_dir);
void sp_images_free(struct sp_images *images); /* leaves the mounts; NULL is allowed */

/* Mount point of the image of a template directory (whose name is the digest in hex); mounts it if
 * need be: loop device with autoclear, erofs, read-only, nodev, nosuid. Thread-safe, also between
 * processes. A few microseconds when it is mounted. Free the path with g_free(). */
char *sp_images_mount(struct sp_images *images, const char *template_dir, GError **error);
/* Unmounts one image (by digest "sha256:…"), or all with NULL. SP_ERROR_FAILED_PRECONDITION: in
 * use. A mount cloned from it (the lower of a sandbox's overlay) does not keep the mount point,
 * only the device below, which goes with its last user; that is waited for, 3 s at most, and is no
 * error. True when it was not mounted. */
bool sp_images_unmount(struct sp_images *images, const char *digest, GError **error);
