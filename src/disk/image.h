/*
 * Mounts of read-only template images (erofs) for the tiers that share the host's kernel.
 *
 * <state>/run/images/<digest hex>: one mount an image, made at first use, kept while any sandbox may
 * use it, found again by a restarted worker.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>

struct sp_images;

struct sp_images *sp_images_new(const char *state_dir);
void sp_images_free(struct sp_images *images); /* leaves the mounts */

/* Mount point of the image of a template directory; mounts it if need be (loop device with autoclear,
 * erofs, read-only, nodev). Thread-safe. Free the path with g_free(). */
char *sp_images_mount(struct sp_images *images, const char *template_dir, GError **error);
/* Unmounts one image (by digest "sha256:…"), or all with NULL. Fails with SP_ERROR_FAILED_PRECONDITION
 * while it is in use. True when it was not mounted. */
bool sp_images_unmount(struct sp_images *images, const char *digest, GError **error);
