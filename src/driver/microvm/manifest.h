/* manifest.json of a boot image: what the files beside it must be. Written last, so it marks a
 * whole image. */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

struct sp_boot_file {
    int64_t size_bytes;
    int64_t data_bytes;
    char *sha256; /* owned; of struct sp_memory_copied */
};

struct sp_boot_manifest {
    int64_t format; /* SP_BOOT_FORMAT */
    char *key;      /* owned */
    char *identity; /* owned; the text behind the key */
    struct sp_boot_file memory, state, disk;
};

/* Free with g_free(). */
char *sp_boot_manifest_text(const struct sp_boot_manifest *manifest);
/* Strict. *ret is only set on success. */
bool sp_boot_manifest_parse(const char *text, size_t len, struct sp_boot_manifest *ret,
                            GError **error);
void sp_boot_manifest_clear(struct sp_boot_manifest *manifest);
