#include "wire/agent_frame.h"

#include <glib.h>
#include <string.h>

static void test_header_round_trip(void)
{
    const uint32_t lengths[] = {0, 1, 255, 256, SP_FRAME_MAX_PAYLOAD};
    const uint32_t tags[] = {0, 1, 0x80000000u, UINT32_MAX};
    for (unsigned type = 0; type < 256; type++) {
        for (unsigned i = 0; i < G_N_ELEMENTS(lengths); i++) {
            for (unsigned j = 0; j < G_N_ELEMENTS(tags); j++) {
                struct sp_frame_header in = {(uint8_t)type, lengths[i], tags[j]}, out = {0};
                uint8_t bytes[SP_FRAME_HEADER_BYTES];
                sp_frame_header_encode(&in, bytes);
                g_assert_true(sp_frame_header_decode(bytes, &out));
                g_assert_cmpuint(out.type, ==, in.type);
                g_assert_cmpuint(out.payload_len, ==, in.payload_len);
                g_assert_cmpuint(out.tag, ==, in.tag);
            }
        }
    }
}

static void test_header_bytes(void)
{
    struct sp_frame_header h = {SP_FRAME_EVENT, 0x1234, 0xa1b2c3d4};
    uint8_t bytes[SP_FRAME_HEADER_BYTES];
    const uint8_t want[] = {'S',  'P',  'A', '1', 52,   0,    0,    0,
                            0x34, 0x12, 0,   0,   0xd4, 0xc3, 0xb2, 0xa1};
    sp_frame_header_encode(&h, bytes);
    g_assert_cmpmem(bytes, sizeof bytes, want, sizeof want);
}

/* Every single-bit error in magic, reserved bytes or the high length bits is refused. */
static void test_header_refused(void)
{
    struct sp_frame_header h = {SP_FRAME_PING, 10, 7}, out = {99, 99, 99};
    uint8_t good[SP_FRAME_HEADER_BYTES];
    sp_frame_header_encode(&h, good);
    for (unsigned bit = 0; bit < 8 * SP_FRAME_HEADER_BYTES; bit++) {
        uint8_t bytes[SP_FRAME_HEADER_BYTES];
        memcpy(bytes, good, sizeof bytes);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        bool must_fail = bit / 8 < 4 || (bit / 8 >= 5 && bit / 8 < 8) || bit / 8 == 11 ||
                         (bit / 8 == 10 && bit % 8 > 0);
        /* bit 16 alone: 65536 + 10, over the maximum as well */
        must_fail |= bit / 8 == 10;
        g_assert_cmpint(sp_frame_header_decode(bytes, &out), ==, !must_fail);
        if (must_fail)
            g_assert_cmpuint(out.type, ==, 99);
        out = (struct sp_frame_header){99, 99, 99};
    }
}

/* A HELLO header is found behind any junk, and each of its prefixes at the end of the bytes is
 * kept; a reference that tries every offset must agree. */
static bool could_start(const uint8_t *at, size_t left, uint8_t type)
{
    const uint8_t want[8] = {'S', 'P', 'A', '1', type, 0, 0, 0};
    for (size_t i = 0; i < 8 && i < left; i++) {
        if (at[i] != want[i])
            return false;
    }
    return left < 12 || (at[10] == 0 && at[11] == 0 && (at[8] | at[9] << 8) <= 1024);
}

static void test_resync(void)
{
    const uint8_t alphabet[] = {'S', 'P', 'A', '1', 1, 2, 0, 0, 0, 9};
    GRand *r = g_rand_new_with_seed(1);
    for (int round = 0; round < 200000; round++) {
        uint8_t bytes[40];
        size_t len = (size_t)g_rand_int_range(r, 0, sizeof bytes + 1);
        for (size_t i = 0; i < len; i++)
            bytes[i] = alphabet[g_rand_int_range(r, 0, sizeof alphabet)];
        if (len >= 20 && g_rand_boolean(r)) {
            struct sp_frame_header h = {(uint8_t)g_rand_int_range(r, 1, 3), 60, 5};
            sp_frame_header_encode(&h, bytes + g_rand_int_range(r, 0, (int)len - 15));
        }
        size_t want = 0;
        while (want < len && !could_start(bytes + want, len - want, SP_FRAME_HELLO))
            want++;
        uint8_t *exact = g_memdup2(bytes, len); /* so that ASan sees a read past the end */
        g_assert_cmpuint(sp_frame_find_resync(exact, len, SP_FRAME_HELLO), ==, want);
        g_free(exact);
    }
    g_rand_free(r);
    uint8_t zeros[64] = {0};
    g_assert_cmpuint(sp_frame_find_resync(zeros, sizeof zeros, SP_FRAME_HELLO), ==, sizeof zeros);
}

static void test_pack_overflow_is_sticky(void)
{
    for (size_t capacity = 0; capacity < 32; capacity++) {
        uint8_t *bytes = g_malloc(capacity ? capacity : 1);
        struct sp_pack p;
        sp_pack_init(&p, bytes, capacity);
        sp_pack_u8(&p, 1);
        sp_pack_u16(&p, 2);
        sp_pack_u32(&p, 3);
        sp_pack_u64(&p, 4);
        sp_pack_i32(&p, -5);
        sp_pack_str(&p, "abc");
        g_assert_cmpint(p.overflow, ==, capacity < 26);
        g_assert_cmpuint(p.len, <=, capacity);
        if (capacity >= 1 && capacity < 26) {
            sp_pack_u8(&p, 1); /* would fit, but something before it is missing */
            g_assert_true(p.overflow);
        }
        g_free(bytes);
    }
    struct sp_pack p;
    uint8_t small[8];
    sp_pack_init(&p, small, sizeof small);
    sp_pack_blob(&p, small, SIZE_MAX);
    g_assert_true(p.overflow);
}

static void test_unpack(void)
{
    uint8_t bytes[64];
    struct sp_pack p;
    sp_pack_init(&p, bytes, sizeof bytes);
    sp_pack_u8(&p, 200);
    sp_pack_u16(&p, 60000);
    sp_pack_u32(&p, 4000000000u);
    sp_pack_u64(&p, UINT64_MAX - 1);
    sp_pack_i32(&p, INT32_MIN);
    sp_pack_str(&p, NULL);
    sp_pack_blob(&p, "a\0b", 3);
    sp_pack_rest(&p, "xyz", 3);
    struct sp_unpack u;
    sp_unpack_init(&u, bytes, p.len);
    g_assert_cmpuint(sp_unpack_u8(&u), ==, 200);
    g_assert_cmpuint(sp_unpack_u16(&u), ==, 60000);
    g_assert_cmpuint(sp_unpack_u32(&u), ==, 4000000000u);
    g_assert_cmpuint(sp_unpack_u64(&u), ==, UINT64_MAX - 1);
    g_assert_cmpint(sp_unpack_i32(&u), ==, INT32_MIN);
    g_assert_cmpuint(sp_unpack_str(&u).len, ==, 0);
    g_assert_cmpuint(sp_unpack_blob(&u).len, ==, 3);
    g_assert_false(sp_unpack_done(&u));
    g_assert_cmpuint(sp_unpack_rest(&u).len, ==, 3);
    g_assert_true(sp_unpack_done(&u));
    g_assert_cmpuint(sp_unpack_u8(&u), ==, 0);
    g_assert_true(u.bad);
    g_assert_false(sp_unpack_done(&u));
    g_assert_cmpuint(sp_unpack_rest(&u).len, ==, 0);

    const uint8_t with_nul[] = {3, 0, 0, 0, 'a', 0, 'b'};
    sp_unpack_init(&u, with_nul, sizeof with_nul);
    g_assert_cmpuint(sp_unpack_str(&u).len, ==, 0);
    g_assert_true(u.bad);
    const uint8_t too_long[] = {0xff, 0xff, 0xff, 0xff, 'a'};
    sp_unpack_init(&u, too_long, sizeof too_long);
    g_assert_null(sp_unpack_blob(&u).bytes);
    g_assert_true(u.bad);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/frame/header/round-trip", test_header_round_trip);
    g_test_add_func("/frame/header/bytes", test_header_bytes);
    g_test_add_func("/frame/header/refused", test_header_refused);
    g_test_add_func("/frame/resync", test_resync);
    g_test_add_func("/frame/pack/overflow", test_pack_overflow_is_sticky);
    g_test_add_func("/frame/unpack", test_unpack);
    return g_test_run();
}
