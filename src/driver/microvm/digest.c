#include "driver/microvm/digest.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>

#include "base/error.h"

#define HASH_BYTES 32

struct sp_digest {
    gnutls_hash_hd_t hash;
};

struct sp_digest *sp_digest_new(void)
{
    struct sp_digest *digest = g_new0(struct sp_digest, 1);
    /* Fails only without memory, or in a policy that forbids SHA-256: nothing works then. */
    if (gnutls_hash_init(&digest->hash, GNUTLS_DIG_SHA256) < 0)
        g_error("SHA-256 is not available");
    return digest;
}

void sp_digest_add(struct sp_digest *digest, const void *bytes, size_t len)
{
    if (gnutls_hash(digest->hash, bytes, len) < 0)
        g_error("SHA-256 failed");
}

void sp_digest_end(struct sp_digest *digest, char ret_hex[SP_HASH_HEX])
{
    uint8_t bytes[HASH_BYTES];
    gnutls_hash_deinit(digest->hash, bytes);
    g_free(digest);
    for (int i = 0; ret_hex && i < HASH_BYTES; i++)
        snprintf(ret_hex + 2 * i, 3, "%02x", bytes[i]);
}

bool sp_digest_fd(int fd, char ret_hex[SP_HASH_HEX], GError **error)
{
    enum { CHUNK_BYTES = 256 * 1024 };
    g_autofree uint8_t *buffer = g_malloc(CHUNK_BYTES);
    struct sp_digest *digest = sp_digest_new();
    off_t at = 0;
    for (;;) {
        ssize_t n = pread(fd, buffer, CHUNK_BYTES, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "read");
            sp_digest_end(digest, NULL);
            return false;
        }
        if (n == 0)
            break;
        sp_digest_add(digest, buffer, (size_t)n);
        at += n;
    }
    sp_digest_end(digest, ret_hex);
    return true;
}
