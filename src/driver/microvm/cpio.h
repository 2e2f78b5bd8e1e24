/*
 * Writes cpio archives in the "newc" form, which the kernel unpacks as the initial root
 * (Documentation/driver-api/early-userspace/buffer-format.rst). Deterministic: no times, no owners.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* name without a leading slash; a directory must be added before what is in it. Content at most 64
 * MiB. */
void sp_cpio_add_directory(GByteArray *archive, const char *name, mode_t mode);
void sp_cpio_add_file(GByteArray *archive, const char *name, mode_t mode, const void *content,
                      size_t len);
/* The trailer, padded to 512 bytes. Last. */
void sp_cpio_finish(GByteArray *archive);
