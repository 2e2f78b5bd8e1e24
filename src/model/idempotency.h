/* The rules of the headers Idempotency-Key and Prefer. */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/ids.h"

#define SP_IDEMPOTENCY_KEEP_MS (24 * 3600 * (int64_t)1000)

/* Printable ASCII, 1 to 200 bytes. The error names the header. */
bool sp_idempotency_key_check(const char *key, GError **error);

/* What makes two requests the same: SHA-256 over the method, the path and the body. A body counts
 * by its value: the order of its fields and white space do not matter. body may be NULL. */
void sp_idempotency_hash(const char *method, const char *path, const json_t *body,
                         char ret_hex[SP_HASH_HEX]);

/* The wait of "Prefer: wait=<seconds>" (RFC 7240), 1 to 600. *ret_wait_ms is 0 when the header is
 * NULL or holds no wait; other preferences are ignored. */
bool sp_prefer_parse(const char *header, int64_t *ret_wait_ms, GError **error);
