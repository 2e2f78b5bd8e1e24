/*
 * libFuzzer target for the agent link: headers, resync and every message decoder.
 *
 * Invariants: nothing reads out of bounds (ASan), and what a decoder accepts is encoded again to
 * the very same bytes: no two payloads mean the same message.
 */
#include "wire/agent_frame.h"

#include "../unit/wire/agent_msg_recode.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok)
{
    if (!ok)
        abort();
}

static void fuzz_header(const uint8_t *data, size_t size)
{
    struct sp_frame_header header;
    uint8_t again[SP_FRAME_HEADER_BYTES];
    if (size >= SP_FRAME_HEADER_BYTES && sp_frame_header_decode(data, &header)) {
        sp_frame_header_encode(&header, again);
        check(memcmp(again, data, sizeof again) == 0);
        if (header.type == SP_FRAME_HELLO && header.payload_len <= 1024)
            check(sp_frame_find_resync(data, size, SP_FRAME_HELLO) == 0);
    }
    check(sp_frame_find_resync(data, size, SP_FRAME_HELLO_OK) <= size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t space[SP_FRAME_MAX_PAYLOAD];
    fuzz_header(data, size);
    if (size < 1 || size > SP_FRAME_MAX_PAYLOAD)
        return 0;
    /* The first byte chooses the message. */
    unsigned which = data[0] % (sizeof recodes / sizeof recodes[0]);
    struct sp_pack out;
    sp_pack_init(&out, space, sizeof space);
    if (recodes[which].recode(data + 1, size - 1, &out)) {
        check(!out.overflow && out.len == size - 1);
        check(memcmp(out.bytes, data + 1, out.len) == 0);
    }
    return 0;
}
