/* How many members a pool should hold. */
#include <glib.h>
#include <string.h>

#include "node/pool_target.h"

#define SECOND INT64_C(1000)
#define MINUTE (60 * SECOND)
#define START (100 * MINUTE)

static void note(struct sp_pool_demand *demand, int64_t at_ms, unsigned n)
{
    while (n-- > 0)
        sp_pool_demand_note(demand, at_ms);
}

static unsigned high_at(const struct sp_pool_demand *demand, int64_t now_ms)
{
    return sp_pool_target(demand, now_ms, false, 2, 64).high;
}

static void test_no_demand(void)
{
    struct sp_pool_demand demand = {0};
    for (int keep = 0; keep < 2; keep++) {
        struct sp_pool_marks marks = sp_pool_target(&demand, START, keep, 2, 64);
        g_assert_cmpuint(marks.low, ==, 0);
        g_assert_cmpuint(marks.high, ==, 0);
    }
}

static void test_minimum_after_first_use(void)
{
    struct sp_pool_demand demand = {0};
    note(&demand, START, 1);
    struct sp_pool_marks marks = sp_pool_target(&demand, START, false, 2, 64);
    g_assert_cmpuint(marks.high, ==, 2);
    g_assert_cmpuint(marks.low, ==, 2);
    g_assert_cmpuint(high_at(&demand, START + SP_POOL_FORGET_MS - 1), ==, 2);
    g_assert_cmpuint(high_at(&demand, START + SP_POOL_FORGET_MS), ==, 0);
    g_assert_cmpuint(sp_pool_target(&demand, START + 10 * SP_POOL_FORGET_MS, true, 2, 64).high, ==,
                     2);
}

static void test_maximum_wins_over_minimum(void)
{
    struct sp_pool_demand demand = {0};
    note(&demand, START, 500);
    for (unsigned max = 0; max < 8; max++)
        g_assert_cmpuint(sp_pool_target(&demand, START, false, 5, max).high, ==, max);
    demand = (struct sp_pool_demand){0};
    note(&demand, START, 1);
    g_assert_cmpuint(sp_pool_target(&demand, START, false, 5, 3).high, ==, 3);
}

/* A burst is covered in full for a while, then less, never more, and in the end not at all. */
static void test_burst_decays(void)
{
    struct sp_pool_demand demand = {0};
    note(&demand, START, 40);
    g_assert_cmpuint(high_at(&demand, START), ==, 40);
    g_assert_cmpuint(high_at(&demand, START + 2 * MINUTE - 1), ==, 40);
    unsigned before = 40;
    for (int64_t at = START; at < START + 11 * MINUTE; at += SECOND) {
        unsigned high = high_at(&demand, at);
        g_assert_cmpuint(high, <=, before);
        g_assert_cmpuint(high, >=, 2);
        before = high;
    }
    g_assert_cmpuint(high_at(&demand, START + 5 * MINUTE), <, 40);
    g_assert_cmpuint(high_at(&demand, START + 5 * MINUTE), >, 10);
    g_assert_cmpuint(before, ==, 2);
}

/* A steady rate that no bucket shows as a burst still needs what is used up while one is made. */
static void test_slow_making_needs_more(void)
{
    struct sp_pool_demand demand = {0};
    for (int64_t at = START; at < START + 2 * MINUTE; at += SECOND)
        note(&demand, at, 1);
    int64_t now = START + 2 * MINUTE - 1;
    sp_pool_demand_made(&demand, 20);
    g_assert_cmpuint(high_at(&demand, now), ==, 10); /* a bucket's worth */
    demand.make_ms = 30000;
    g_assert_cmpuint(high_at(&demand, now), ==, 30); /* 1/s × 30 s × 2 ÷ 2 at once */
}

static void test_make_time_is_smoothed(void)
{
    struct sp_pool_demand demand = {0};
    sp_pool_demand_made(&demand, 100);
    g_assert_cmpint(demand.make_ms, ==, 100);
    sp_pool_demand_made(&demand, 500);
    g_assert_cmpint(demand.make_ms, ==, 200);
    for (int i = 0; i < 100; i++)
        sp_pool_demand_made(&demand, 0);
    g_assert_cmpint(demand.make_ms, ==, 1);
}

/* Whatever the history: what an old bucket held does not come back when the ring goes round. */
static void test_ring(void)
{
    for (int64_t gap = 0; gap < 200 * SECOND; gap += 7 * SECOND) {
        struct sp_pool_demand demand = {0};
        int64_t at = START;
        for (int i = 0; i < 40; i++, at += gap)
            note(&demand, at, 3);
        at += 10 * MINUTE;
        note(&demand, at, 1);
        unsigned sum = 0;
        for (unsigned i = 0; i < SP_POOL_BUCKETS; i++)
            sum += demand.creates[i];
        g_assert_cmpuint(sum, <=, 3 * 40 + 1);
        g_assert_cmpuint(high_at(&demand, at + 10 * MINUTE), ==, 2);
    }
    struct sp_pool_demand demand = {0};
    note(&demand, START, 50);
    note(&demand, START + 10 * MINUTE, 1); /* the same place in the ring */
    g_assert_cmpuint(high_at(&demand, START + 10 * MINUTE), ==, 2);
}

/* A clock that goes back must not read what is not there. */
static void test_time_before(void)
{
    struct sp_pool_demand demand = {0};
    note(&demand, START, 10);
    note(&demand, START - MINUTE, 1);
    g_assert_cmpuint(high_at(&demand, START - MINUTE), >=, 2);
    g_assert_cmpuint(high_at(&demand, 0), >=, 2);
}

/* All small demands: marks within their bounds, low at most high, more demand never less. */
static void test_bounds(void)
{
    for (unsigned min = 0; min < 4; min++) {
        for (unsigned max = 0; max < 6; max++) {
            unsigned before = 0;
            for (unsigned n = 1; n < 12; n++) {
                struct sp_pool_demand demand = {0};
                note(&demand, START, n);
                struct sp_pool_marks marks = sp_pool_target(&demand, START, false, min, max);
                g_assert_cmpuint(marks.low, <=, marks.high);
                g_assert_cmpuint(marks.high, <=, max);
                g_assert_cmpuint(marks.high, >=, MIN(min, max));
                g_assert_cmpuint(marks.high, >=, before);
                g_assert_true(marks.high == 0 || marks.low > 0);
                before = marks.high;
            }
        }
    }
}

/* Every small case: sums within the limits, no one more than asked, nothing left that fits, and
 * nobody two behind another who could have had it. */
static void check_share(const unsigned *asked, size_t n, unsigned max_members, int64_t max_bytes)
{
    static const int64_t costs[] = {1, 3, 2};
    struct sp_pool_want wants[3];
    unsigned members = 0;
    int64_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        wants[i] = (struct sp_pool_want){{asked[i] - asked[i] / 4, asked[i]}, costs[i]};
    sp_pool_share(wants, n, max_members, max_bytes);
    for (size_t i = 0; i < n; i++) {
        g_assert_cmpuint(wants[i].marks.high, <=, asked[i]);
        g_assert_cmpuint(wants[i].marks.low, <=, wants[i].marks.high);
        members += wants[i].marks.high;
        bytes += wants[i].marks.high * costs[i];
    }
    g_assert_cmpuint(members, <=, max_members);
    g_assert_cmpint(bytes, <=, max_bytes);
    for (size_t i = 0; i < n; i++) {
        bool wants_more = wants[i].marks.high < asked[i];
        g_assert_false(wants_more && members < max_members && bytes + costs[i] <= max_bytes);
        for (size_t j = 0; wants_more && j < n; j++) {
            if (costs[j] >= costs[i])
                g_assert_cmpuint(wants[j].marks.high, <=, wants[i].marks.high + 1);
        }
    }
}

static void test_share(void)
{
    for (unsigned a = 0; a < 5; a++)
        for (unsigned b = 0; b < 5; b++)
            for (unsigned c = 0; c < 5; c++)
                for (unsigned members = 0; members < 14; members++)
                    for (int64_t bytes = 0; bytes < 26; bytes++)
                        check_share((const unsigned[]){a, b, c}, 3, members, bytes);
    sp_pool_share(NULL, 0, 10, 10);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/node/pool_target/no_demand", test_no_demand);
    g_test_add_func("/node/pool_target/minimum", test_minimum_after_first_use);
    g_test_add_func("/node/pool_target/maximum", test_maximum_wins_over_minimum);
    g_test_add_func("/node/pool_target/burst", test_burst_decays);
    g_test_add_func("/node/pool_target/slow_making", test_slow_making_needs_more);
    g_test_add_func("/node/pool_target/make_time", test_make_time_is_smoothed);
    g_test_add_func("/node/pool_target/ring", test_ring);
    g_test_add_func("/node/pool_target/time_before", test_time_before);
    g_test_add_func("/node/pool_target/bounds", test_bounds);
    g_test_add_func("/node/pool_target/share", test_share);
    return g_test_run();
}
