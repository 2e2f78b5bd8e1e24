/*
 * Guest RAM as files: anonymous ones (memfd_create(2)) that QEMU maps, and sparse ones on disk.
 *
 * A boot image's RAM is held in one sealed memfd per worker and mapped privately by every VM made
 * from it: a VMM that was broken out of cannot change what the others see.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/ids.h"

/* An empty memfd of this size, close-on-exec, sealable; -1 on failure. */
int sp_memory_new(const char *name, int64_t size_bytes, GError **error);
/* pwrite(2) of all bytes. SP_ERROR_UNAVAILABLE: no space. */
bool sp_memory_write(int fd, const void *bytes, size_t len, int64_t at, GError **error);
/* pread(2) of all bytes; a file that ends before is an error. */
bool sp_memory_read(int fd, void *bytes, size_t len, int64_t at, GError **error);
bool sp_memory_is_zero(const void *bytes, size_t len);
/* A sealed memfd that holds these bytes; -1 on failure. */
int sp_memory_from_bytes(const char *name, const void *bytes, size_t len, GError **error);
/* Nobody can write to the memfd or change its size any more (F_ADD_SEALS, fcntl(2)). */
bool sp_memory_seal(int fd, GError **error);

struct sp_memory_copied {
    int64_t size_bytes;
    int64_t data_bytes;       /* in blocks of 4096 that are not all zero */
    char sha256[SP_HASH_HEX]; /* over offset (u64, little-endian) and content of each such block, in
                                 order */
};

/* Copies `from` to the empty file `to` and gives it the same size. Holes and blocks of zeros become
 * holes. to = -1: only looks. ret = NULL: only copies, without a digest. Blocks. */
bool sp_memory_copy(int from, int to, struct sp_memory_copied *ret, GError **error);

/* The digest by hand: runs of whole blocks in order; blocks of zeros do not count. */
struct sp_memory_digest;
struct sp_memory_digest *sp_memory_digest_new(void);
void sp_memory_digest_add(struct sp_memory_digest *digest, const void *bytes, size_t len,
                          int64_t at);
/* Frees it. Sets data_bytes and sha256; ret may be NULL. */
void sp_memory_digest_end(struct sp_memory_digest *digest, struct sp_memory_copied *ret);
