#include "base/ids.h"

#include <errno.h>
#include <glib.h>
#include <string.h>
#include <sys/random.h>

static const char crockford[] = "0123456789abcdefghjkmnpqrstvwxyz";

void sp_random_bytes(void *ret_bytes, unsigned len)
{
    uint8_t *at = ret_bytes;
    while (len > 0) {
        ssize_t n = getrandom(at, len, 0);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            g_error("getrandom: %s", g_strerror(errno)); /* does not return */
        }
        at += n;
        len -= (unsigned)n;
    }
}

void sp_id_new(const char *prefix, char ret_id[SP_ID_MAX])
{
    uint8_t raw[16];
    uint64_t now_ms = (uint64_t)(g_get_real_time() / 1000);
    sp_random_bytes(raw, sizeof raw);
    for (int i = 0; i < 6; i++)
        raw[i] = (uint8_t)(now_ms >> (40 - 8 * i));

    /* 128 bits in 26 characters of 5 bits: the first one carries 3. */
    char text[27];
    unsigned acc = 0, bits = 2; /* two leading zero bits make 130 */
    int out = 0;
    for (int i = 0; i < 16; i++) {
        acc = acc << 8 | raw[i];
        bits += 8;
        while (bits >= 5) {
            bits -= 5;
            text[out++] = crockford[acc >> bits & 31];
        }
        acc &= (1u << bits) - 1;
    }
    text[out] = '\0';
    g_snprintf(ret_id, SP_ID_MAX, "%s_%s", prefix, text);
}

bool sp_id_valid(const char *text, const char *prefix)
{
    size_t n = strlen(prefix);
    if (strncmp(text, prefix, n) != 0 || text[n] != '_' || strlen(text + n + 1) != 26)
        return false;
    for (const char *c = text + n + 1; *c; c++) {
        if (!strchr(crockford, *c))
            return false;
    }
    return true;
}

void sp_secret_new(const char *prefix, char ret_secret[SP_SECRET_MAX])
{
    uint8_t raw[32];
    sp_random_bytes(raw, sizeof raw);
    g_autofree char *b64 = g_base64_encode(raw, sizeof raw);
    for (char *c = b64; *c; c++) {
        if (*c == '+')
            *c = '-';
        else if (*c == '/')
            *c = '_';
        else if (*c == '=')
            *c = '\0';
    }
    g_snprintf(ret_secret, SP_SECRET_MAX, "%s_%s", prefix, b64);
}

void sp_secret_hash(const char *secret, char ret_hex[SP_HASH_HEX])
{
    g_autofree char *hex = g_compute_checksum_for_string(G_CHECKSUM_SHA256, secret, -1);
    g_strlcpy(ret_hex, hex, SP_HASH_HEX);
}

bool sp_hash_equal(const char a[SP_HASH_HEX], const char b[SP_HASH_HEX])
{
    unsigned diff = 0;
    for (int i = 0; i < SP_HASH_HEX - 1; i++)
        diff |= (unsigned)(a[i] ^ b[i]);
    return diff == 0;
}
