/* SHA-256 of files, quick enough for guest memory. */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/ids.h"

struct sp_digest;

struct sp_digest *sp_digest_new(void);
void sp_digest_add(struct sp_digest *digest, const void *bytes, size_t len);
/* Lower-case hex; frees the digest. NULL ret_hex: only frees. */
void sp_digest_end(struct sp_digest *digest, char ret_hex[SP_HASH_HEX]);

/* Of a whole file, from the start (the offset of fd is not used). */
bool sp_digest_fd(int fd, char ret_hex[SP_HASH_HEX], GError **error);
