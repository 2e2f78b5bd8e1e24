/*
 * Identifiers and secrets: "sbx_" + ULID and the like, API keys, attachment tokens, their hashes.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define SP_ID_MAX 40     /* bytes that any id fits in, with its NUL */
#define SP_SECRET_MAX 64 /* bytes that any key or token fits in, with its NUL */
#define SP_HASH_HEX 65   /* SHA-256 in lower-case hex, with its NUL */

/* A new id: prefix ("sbx", "op", "ses", …), "_", and 26 characters of a lower-case ULID: 48 bits of
 * milliseconds, 80 random bits. Sorts by time of making. Ends the process when the kernel has no
 * random bytes to give. */
void sp_id_new(const char *prefix, char ret_id[SP_ID_MAX]);
/* Whether text is prefix + "_" + 26 characters of the alphabet. Ids are used as file names only
 * after this check. */
bool sp_id_valid(const char *text, const char *prefix);

/* A new secret: prefix ("sk", "at", "nk") + "_" + 43 base64url characters (256 random bits). */
void sp_secret_new(const char *prefix, char ret_secret[SP_SECRET_MAX]);
/* SHA-256 of a secret in hex: what is stored in its place. */
void sp_secret_hash(const char *secret, char ret_hex[SP_HASH_HEX]);
/* Compares two hashes in constant time. */
bool sp_hash_equal(const char a[SP_HASH_HEX], const char b[SP_HASH_HEX]);

/* len random bytes of the kernel (getrandom(2)). */
void sp_random_bytes(void *ret_bytes, unsigned len);
