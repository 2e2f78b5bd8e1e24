#include "wire/agent_frame.h"

#include <string.h>

static void put_le(uint8_t *at, uint64_t v, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get_le(const uint8_t *at, unsigned bytes)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < bytes; i++)
        v |= (uint64_t)at[i] << (8 * i);
    return v;
}

void sp_frame_header_encode(const struct sp_frame_header *header,
                            uint8_t ret_bytes[SP_FRAME_HEADER_BYTES])
{
    put_le(ret_bytes, SP_FRAME_MAGIC, 4);
    put_le(ret_bytes + 4, header->type, 4); /* the three reserved bytes become zero */
    put_le(ret_bytes + 8, header->payload_len, 4);
    put_le(ret_bytes + 12, header->tag, 4);
}

bool sp_frame_header_decode(const uint8_t bytes[SP_FRAME_HEADER_BYTES], struct sp_frame_header *ret)
{
    uint32_t payload_len = (uint32_t)get_le(bytes + 8, 4);
    if (get_le(bytes, 4) != SP_FRAME_MAGIC || bytes[5] || bytes[6] || bytes[7] ||
        payload_len > SP_FRAME_MAX_PAYLOAD)
        return false;
    ret->type = bytes[4];
    ret->payload_len = payload_len;
    ret->tag = (uint32_t)get_le(bytes + 12, 4);
    return true;
}

/* The longest HELLO is far below this; a larger length inside stale bytes is not a HELLO. */
#define RESYNC_MAX_PAYLOAD 1024u

size_t sp_frame_find_resync(const uint8_t *bytes, size_t len, uint8_t wanted_type)
{
    const uint8_t want[8] = {'S', 'P', 'A', '1', wanted_type, 0, 0, 0};
    for (size_t at = 0; at < len; at++) {
        size_t left = len - at;
        if (memcmp(bytes + at, want, left < sizeof want ? left : sizeof want) != 0)
            continue;
        if (left < 12 || get_le(bytes + at + 8, 4) <= RESYNC_MAX_PAYLOAD)
            return at;
    }
    return len;
}

void sp_pack_init(struct sp_pack *p, uint8_t *bytes, size_t capacity)
{
    *p = (struct sp_pack){.bytes = bytes, .capacity = capacity};
}

static uint8_t *pack_take(struct sp_pack *p, size_t len)
{
    if (p->overflow || len > p->capacity - p->len) {
        p->overflow = true;
        return NULL;
    }
    uint8_t *at = p->bytes + p->len;
    p->len += len;
    return at;
}

static void pack_le(struct sp_pack *p, uint64_t v, unsigned bytes)
{
    uint8_t *at = pack_take(p, bytes);
    if (at)
        put_le(at, v, bytes);
}

void sp_pack_u8(struct sp_pack *p, uint8_t v)
{
    pack_le(p, v, 1);
}

void sp_pack_u16(struct sp_pack *p, uint16_t v)
{
    pack_le(p, v, 2);
}

void sp_pack_u32(struct sp_pack *p, uint32_t v)
{
    pack_le(p, v, 4);
}

void sp_pack_u64(struct sp_pack *p, uint64_t v)
{
    pack_le(p, v, 8);
}

void sp_pack_i32(struct sp_pack *p, int32_t v)
{
    pack_le(p, (uint32_t)v, 4);
}

void sp_pack_rest(struct sp_pack *p, const void *s, size_t len)
{
    uint8_t *at = pack_take(p, len);
    if (at && len > 0)
        memcpy(at, s, len);
}

void sp_pack_blob(struct sp_pack *p, const void *s, size_t len)
{
    if (len > SP_FRAME_MAX_PAYLOAD) {
        p->overflow = true;
        return;
    }
    sp_pack_u32(p, (uint32_t)len);
    sp_pack_rest(p, s, len);
}

void sp_pack_str(struct sp_pack *p, const char *s)
{
    sp_pack_blob(p, s, s ? strlen(s) : 0);
}

void sp_unpack_init(struct sp_unpack *u, const uint8_t *bytes, size_t len)
{
    *u = (struct sp_unpack){.bytes = bytes, .len = len};
}

static const uint8_t *unpack_take(struct sp_unpack *u, size_t len)
{
    if (u->bad || len > u->len - u->at) {
        u->bad = true;
        return NULL;
    }
    const uint8_t *at = u->bytes + u->at;
    u->at += len;
    return at;
}

static uint64_t unpack_le(struct sp_unpack *u, unsigned bytes)
{
    const uint8_t *at = unpack_take(u, bytes);
    return at ? get_le(at, bytes) : 0;
}

uint8_t sp_unpack_u8(struct sp_unpack *u)
{
    return (uint8_t)unpack_le(u, 1);
}

uint16_t sp_unpack_u16(struct sp_unpack *u)
{
    return (uint16_t)unpack_le(u, 2);
}

uint32_t sp_unpack_u32(struct sp_unpack *u)
{
    return (uint32_t)unpack_le(u, 4);
}

uint64_t sp_unpack_u64(struct sp_unpack *u)
{
    return unpack_le(u, 8);
}

int32_t sp_unpack_i32(struct sp_unpack *u)
{
    return (int32_t)(uint32_t)unpack_le(u, 4);
}

struct sp_span sp_unpack_blob(struct sp_unpack *u)
{
    size_t len = sp_unpack_u32(u);
    const uint8_t *at = unpack_take(u, len);
    return at ? (struct sp_span){at, len} : (struct sp_span){0};
}

struct sp_span sp_unpack_str(struct sp_unpack *u)
{
    struct sp_span span = sp_unpack_blob(u);
    if (span.len > 0 && memchr(span.bytes, 0, span.len)) {
        u->bad = true;
        return (struct sp_span){0};
    }
    return span;
}

struct sp_span sp_unpack_rest(struct sp_unpack *u)
{
    size_t len = u->bad ? 0 : u->len - u->at;
    const uint8_t *at = unpack_take(u, len);
    return at ? (struct sp_span){at, len} : (struct sp_span){0};
}

bool sp_unpack_done(const struct sp_unpack *u)
{
    return !u->bad && u->at == u->len;
}
