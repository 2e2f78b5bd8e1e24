#include "ring.h"

#include <glib.h>
#include <string.h>

/* The ring against a model that keeps every event: ids, eviction rules and bytes must agree through
 * long random histories, with growing, wrapping, trimming and a shared pool. */

struct model {
    GPtrArray *events; /* GBytes, body of event i + 1 */
};

static GBytes *body_of(uint8_t kind, const uint8_t *data, size_t len)
{
    uint8_t *body = g_malloc(len + 1);
    body[0] = kind;
    memcpy(body + 1, data, len);
    return g_bytes_new_take(body, len + 1);
}

static void check_kept(const struct ring *r, const struct model *m)
{
    g_assert_cmpuint(r->next_id, ==, m->events->len + 1);
    struct ring_cursor cursor;
    g_assert_true(ring_seek(r, r->oldest_id, &cursor));
    for (uint64_t id = r->oldest_id; id < r->next_id; id++) {
        GBytes *want = m->events->pdata[id - 1];
        size_t len = ring_body_len(r, &cursor);
        g_assert_cmpuint(len, ==, g_bytes_get_size(want));
        g_autofree uint8_t *got = g_malloc(len);
        ring_take(r, &cursor, got);
        g_assert_cmpmem(got, len, g_bytes_get_data(want, NULL), len);
    }
    g_assert_cmpuint(cursor.id, ==, r->next_id);
    g_assert_cmpuint(ring_body_len(r, &cursor), ==, 0);
}

static void random_step(struct ring *r, struct model *m, GRand *random)
{
    uint8_t data[6000];
    uint64_t oldest = r->oldest_id, acked = r->acked;
    switch (g_rand_int_range(random, 0, 6)) {
    case 0:
        ring_set_acked(r, (uint64_t)g_rand_int_range(random, 0, (int)r->next_id + 3));
        g_assert_cmpuint(r->acked, <, r->next_id);
        g_assert_cmpuint(r->oldest_id, ==, oldest);
        break;
    case 1:
        if (g_rand_int_range(random, 0, 20) == 0)
            ring_trim(r);
        break;
    default: {
        bool final = g_rand_int_range(random, 0, 50) == 0;
        size_t room = ring_room(r);
        size_t len = (size_t)g_rand_int_range(random, 0, final ? 40 : 6000);
        for (size_t i = 0; i < len; i++)
            data[i] = (uint8_t)g_rand_int(random);
        bool done = ring_append(r, 2, data, len, final);
        if (!final)
            g_assert_cmpint(done, ==, len <= room); /* exactly what room said */
        if (done)
            g_ptr_array_add(m->events, body_of(2, data, len));
    }
    }
    if (r->oldest_id > oldest) /* only acknowledged events were evicted */
        g_assert_cmpuint(r->oldest_id - 1, <=, MAX(acked, r->acked));
    g_assert_cmpuint(r->head - r->tail, <=, r->capacity + 4096);
}

static void test_against_model(void)
{
    GRand *random = g_rand_new_with_seed(42);
    for (int history = 0; history < 60; history++) {
        struct ring_pool pool = {.max = history % 3 ? 1u << 20 : 9000};
        struct ring r;
        struct model m = {g_ptr_array_new_with_free_func((GDestroyNotify)g_bytes_unref)};
        ring_init(&r, &pool, (size_t)g_rand_int_range(random, 1, 40000));
        for (int step = 0; step < 600; step++) {
            random_step(&r, &m, random);
            g_assert_cmpuint(pool.used, ==, r.allocated);
            if (step % 20 == 0)
                check_kept(&r, &m);
        }
        check_kept(&r, &m);
        ring_clear(&r);
        g_assert_cmpuint(pool.used, ==, 0);
        g_ptr_array_free(m.events, TRUE);
    }
    g_rand_free(random);
}

static void test_block_and_ack(void)
{
    struct ring_pool pool = {.max = 1u << 20};
    struct ring r;
    ring_init(&r, &pool, 1); /* becomes the minimum */
    uint8_t data[RING_MIN_BYTES] = {0};
    unsigned count = 0;
    while (ring_append(&r, 2, data, 1000, false))
        count++;
    g_assert_cmpuint(count, ==, RING_MIN_BYTES / 1005);
    g_assert_cmpuint(r.oldest_id, ==, 1);
    g_assert_true(ring_append(&r, 5, data, 37, true)); /* the end can always be told */
    ring_set_acked(&r, 1);
    g_assert_cmpuint(r.oldest_id, ==, 1); /* kept for replay while it fits */
    g_assert_cmpuint(ring_room(&r), >, 900);
    g_assert_true(ring_append(&r, 2, data, ring_room(&r), false));
    g_assert_cmpuint(r.oldest_id, ==, 2);
    ring_set_acked(&r, 0); /* a reader that went back: nothing more may go */
    g_assert_cmpuint(r.acked, ==, 0);
    g_assert_false(ring_append(&r, 2, data, 500, false));
    ring_clear(&r);
}

static void test_seek(void)
{
    struct ring_pool pool = {.max = 1u << 20};
    struct ring r;
    struct ring_cursor cursor;
    ring_init(&r, &pool, 0);
    g_assert_cmpuint(r.capacity, ==, RING_DEFAULT_BYTES);
    g_assert_false(ring_seek(&r, 0, &cursor));
    g_assert_true(ring_seek(&r, 1, &cursor)); /* the one to come */
    g_assert_false(ring_seek(&r, 2, &cursor));
    g_assert_cmpuint(ring_body_len(&r, &cursor), ==, 0);
    g_assert_true(ring_append(&r, 1, "abcd", 4, true));
    uint8_t body[5];
    g_assert_cmpuint(ring_body_len(&r, &cursor), ==, 5); /* the cursor stands on it */
    ring_take(&r, &cursor, body);
    g_assert_cmpmem(body, 5, "\1abcd", 5);
    ring_set_acked(&r, 1);
    ring_trim(&r);
    g_assert_cmpuint(r.oldest_id, ==, 2);
    g_assert_cmpuint(r.allocated, ==, 0);
    g_assert_false(ring_seek(&r, 1, &cursor));
    g_assert_true(ring_append(&r, 2, "x", 1, false));
    g_assert_cmpuint(ring_body_len(&r, &cursor), ==, 2);
    ring_clear(&r);
}

static void test_pool_is_shared(void)
{
    struct ring_pool pool = {.max = 64u << 10};
    struct ring a, b;
    uint8_t data[4000] = {0};
    ring_init(&a, &pool, 1u << 20);
    ring_init(&b, &pool, 1u << 20);
    while (ring_append(&a, 2, data, sizeof data, false))
        ;
    g_assert_cmpuint(pool.used, <=, pool.max);
    g_assert_true(ring_append(&b, 2, data, sizeof data, false)); /* always RING_MIN_BYTES */
    g_assert_false(ring_append(&b, 2, data, sizeof data, false));
    g_assert_cmpuint(pool.used, <=, pool.max + RING_MIN_BYTES);
    ring_set_acked(&a, a.next_id - 1);
    ring_trim(&a);
    g_assert_true(ring_append(&b, 2, data, sizeof data, false));
    ring_clear(&a);
    ring_clear(&b);
    g_assert_cmpuint(pool.used, ==, 0);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/ring/model", test_against_model);
    g_test_add_func("/ring/block-and-ack", test_block_and_ack);
    g_test_add_func("/ring/seek", test_seek);
    g_test_add_func("/ring/pool", test_pool_is_shared);
    return g_test_run();
}
