/*
 * How many members a pool should hold: pure functions of the demand and the limits
 * (docs/pools.md §3).
 *
 * Demand is counted in buckets of ten seconds over the last ten minutes. A pool has to cover the
 * largest burst of these minutes (the older it is, the less of it) and what is asked for while one
 * member is being made.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SP_POOL_BUCKET_MS 10000
#define SP_POOL_BUCKETS 60u
/* A key that nobody has asked for in so long has no minimum any more. */
#define SP_POOL_FORGET_MS (30 * 60 * 1000)

/* The creates of one key. Zeroed: none. Times are monotonic. */
struct sp_pool_demand {
    unsigned creates[SP_POOL_BUCKETS]; /* [bucket number % SP_POOL_BUCKETS] */
    int64_t newest;                    /* the newest bucket's number */
    int64_t last_ms;                   /* of the last create; 0: there was none */
    int64_t make_ms;                   /* how long making a member takes; smoothed; 0: not known */
};

/* Below low it is filled up to high. */
struct sp_pool_marks {
    unsigned low, high;
};

/* A create was asked for. */
void sp_pool_demand_note(struct sp_pool_demand *demand, int64_t now_ms);
/* A member was made in took_ms. */
void sp_pool_demand_made(struct sp_pool_demand *demand, int64_t took_ms);

/* The marks of one key on its own: between min and max; none for a key that is forgotten, unless
 * it is to be kept. */
struct sp_pool_marks sp_pool_target(const struct sp_pool_demand *demand, int64_t now_ms, bool keep,
                                    unsigned min, unsigned max);

/* What one key wants of what all share. */
struct sp_pool_want {
    struct sp_pool_marks marks; /* in: wanted; out: granted */
    int64_t member_bytes;       /* memory that a member takes, > 0 */
};
/* Cuts the wants down to what there is, in the order of the list (most urgent first): one member
 * for each in turn, so that no key takes all. The sum of the high marks is at most max_members and
 * the sum of their memory at most max_bytes. */
void sp_pool_share(struct sp_pool_want *wants, size_t n, unsigned max_members, int64_t max_bytes);
