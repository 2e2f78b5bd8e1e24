/*
 * Frames of the link between a worker and the agent of one sandbox.
 *
 * Format: docs/agent-protocol.md. A frame is a 16-byte little-endian header and a payload of at
 * most SP_FRAME_MAX_PAYLOAD bytes. This module knows bytes only: no I/O, no allocation, nothing
 * beyond libc, because the agent links it too.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SP_FRAME_MAGIC 0x31415053u /* the bytes "SPA1" */
#define SP_FRAME_HEADER_BYTES 16u
#define SP_FRAME_MAX_PAYLOAD 65536u

/* Names of the frame types; docs/agent-protocol.md says which side sends which and the payload. */
enum sp_frame_type {
    SP_FRAME_HELLO = 1,
    SP_FRAME_HELLO_OK = 2,
    SP_FRAME_PING = 3,
    SP_FRAME_PONG = 4,
    SP_FRAME_OK = 5,    /* reply: success without content */
    SP_FRAME_ERROR = 6, /* reply: str code, str message */

    SP_FRAME_IDENTITY = 16,
    SP_FRAME_QUIESCE = 17,
    SP_FRAME_HOLD = 18,    /* user processes stand still … */
    SP_FRAME_RELEASE = 19, /* … and go on as who they were */

    SP_FRAME_START = 32,
    SP_FRAME_STARTED = 33, /* reply to START and SESSION_STAT: struct sp_msg_session */
    SP_FRAME_SESSION_STAT = 34,
    SP_FRAME_SIGNAL = 35,
    SP_FRAME_FORGET = 36,
    SP_FRAME_PROCESSES = 37,
    SP_FRAME_PROCESS_LIST = 38,
    SP_FRAME_RESIZE = 39,

    SP_FRAME_SUBSCRIBE = 48,
    SP_FRAME_SUBSCRIBED = 49,
    SP_FRAME_UNSUBSCRIBE = 50,
    SP_FRAME_CREDIT = 51,
    SP_FRAME_EVENT = 52,

    SP_FRAME_STDIN = 64,
    SP_FRAME_STDIN_CLOSE = 65,
    SP_FRAME_STDIN_QUERY = 66,
    SP_FRAME_STDIN_ACK = 67,
};

struct sp_frame_header {
    uint8_t type;         /* enum sp_frame_type; unknown values are passed through */
    uint32_t payload_len; /* <= SP_FRAME_MAX_PAYLOAD */
    uint32_t tag;         /* request id, or subscription id */
};

/* Writes the 16 header bytes. */
void sp_frame_header_encode(const struct sp_frame_header *header,
                            uint8_t ret_bytes[SP_FRAME_HEADER_BYTES]);

/* Reads a header. false: wrong magic, non-zero reserved bytes or a payload_len over the maximum;
 * *ret is untouched then. */
bool sp_frame_header_decode(const uint8_t bytes[SP_FRAME_HEADER_BYTES],
                            struct sp_frame_header *ret);

/* Offset of the first position in bytes[0..len) where a HELLO (or, for the host, HELLO_OK) header
 * with a plausible length starts or could start in bytes that have not yet arrived; len when there
 * is none. Used to find the way back into a stream that was cut inside a frame. */
size_t sp_frame_find_resync(const uint8_t *bytes, size_t len, uint8_t wanted_type);

/* --- payload writer: appends into a caller's buffer; overflow is sticky, checked once at the end
 */
struct sp_pack {
    uint8_t *bytes;
    size_t capacity;
    size_t len;
    bool overflow;
};
void sp_pack_init(struct sp_pack *p, uint8_t *bytes, size_t capacity);
void sp_pack_u8(struct sp_pack *p, uint8_t v);
void sp_pack_u16(struct sp_pack *p, uint16_t v);
void sp_pack_u32(struct sp_pack *p, uint32_t v);
void sp_pack_u64(struct sp_pack *p, uint64_t v);
void sp_pack_i32(struct sp_pack *p, int32_t v);
/* u32 length, then the bytes; s may be NULL when len is 0. */
void sp_pack_blob(struct sp_pack *p, const void *s, size_t len);
/* A NUL-terminated string as a blob without the NUL; NULL is the empty string. */
void sp_pack_str(struct sp_pack *p, const char *s);
/* Raw bytes without a length (only as the last item of a payload). */
void sp_pack_rest(struct sp_pack *p, const void *s, size_t len);

/* --- payload reader: borrows the buffer; any read past the end sets `bad` and yields zeros */
struct sp_unpack {
    const uint8_t *bytes;
    size_t len;
    size_t at;
    bool bad;
};
struct sp_span {
    const uint8_t *bytes; /* borrowed from the payload; not NUL-terminated */
    size_t len;
};
void sp_unpack_init(struct sp_unpack *u, const uint8_t *bytes, size_t len);
uint8_t sp_unpack_u8(struct sp_unpack *u);
uint16_t sp_unpack_u16(struct sp_unpack *u);
uint32_t sp_unpack_u32(struct sp_unpack *u);
uint64_t sp_unpack_u64(struct sp_unpack *u);
int32_t sp_unpack_i32(struct sp_unpack *u);
struct sp_span sp_unpack_blob(struct sp_unpack *u);
/* As a blob, but refuses (sets `bad`) a span that contains a NUL byte. */
struct sp_span sp_unpack_str(struct sp_unpack *u);
struct sp_span sp_unpack_rest(struct sp_unpack *u);
/* True when everything was read, nothing is left over and no read failed. */
bool sp_unpack_done(const struct sp_unpack *u);
