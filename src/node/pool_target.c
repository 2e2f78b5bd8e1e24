#include "node/pool_target.h"

/* So many members are made at once, and so many times what is asked for meanwhile is held: creates
 * do not come evenly. */
#define PARALLEL 2
#define SAFETY 2
#define RATE_BUCKETS 6 /* the rate is that of the last minute */
#define BURST_FRESH 12 /* a burst counts in full for two minutes, then less and less */
#define MAKE_GUESS_MS 200

static int64_t bucket_of(int64_t now_ms)
{
    return now_ms / SP_POOL_BUCKET_MS;
}

static unsigned min_of(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static unsigned max_of(unsigned a, unsigned b)
{
    return a > b ? a : b;
}

static uint64_t divide_up(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

void sp_pool_demand_note(struct sp_pool_demand *demand, int64_t now_ms)
{
    int64_t bucket = bucket_of(now_ms);
    for (int64_t i = demand->newest + 1; i <= bucket; i++) {
        if (i <= bucket - (int64_t)SP_POOL_BUCKETS)
            i = bucket - (int64_t)SP_POOL_BUCKETS + 1; /* the ring once is enough */
        demand->creates[i % SP_POOL_BUCKETS] = 0;
    }
    if (bucket > demand->newest)
        demand->newest = bucket;
    unsigned *count = &demand->creates[demand->newest % SP_POOL_BUCKETS];
    if (*count < UINT32_MAX)
        ++*count;
    demand->last_ms = now_ms;
}

void sp_pool_demand_made(struct sp_pool_demand *demand, int64_t took_ms)
{
    if (took_ms < 1)
        took_ms = 1;
    demand->make_ms = demand->make_ms ? (3 * demand->make_ms + took_ms) / 4 : took_ms;
}

/* Creates of the bucket that is `age` before the one of now; 0 when nothing is known of it. */
static unsigned creates_at(const struct sp_pool_demand *demand, int64_t now_bucket, unsigned age)
{
    int64_t bucket = now_bucket - age;
    if (bucket < 0 || bucket > demand->newest ||
        bucket <= demand->newest - (int64_t)SP_POOL_BUCKETS)
        return 0;
    return demand->creates[bucket % SP_POOL_BUCKETS];
}

struct sp_pool_marks sp_pool_target(const struct sp_pool_demand *demand, int64_t now_ms, bool keep,
                                    unsigned min, unsigned max)
{
    struct sp_pool_marks none = {0, 0};
    if (!demand->last_ms || (!keep && now_ms - demand->last_ms >= SP_POOL_FORGET_MS))
        return none;
    int64_t now = bucket_of(now_ms);
    uint64_t minute = 0, burst = 0;
    for (unsigned age = 0; age < SP_POOL_BUCKETS; age++) {
        uint64_t creates = creates_at(demand, now, age);
        if (age < RATE_BUCKETS)
            minute += creates;
        uint64_t weight = age < BURST_FRESH ? SP_POOL_BUCKETS - BURST_FRESH : SP_POOL_BUCKETS - age;
        uint64_t weighed = divide_up(creates * weight, SP_POOL_BUCKETS - BURST_FRESH);
        if (weighed > burst)
            burst = weighed;
    }
    uint64_t make_ms = (uint64_t)(demand->make_ms ? demand->make_ms : MAKE_GUESS_MS);
    uint64_t steady =
        divide_up(minute * make_ms * SAFETY, PARALLEL * RATE_BUCKETS * SP_POOL_BUCKET_MS);
    uint64_t wanted = burst > steady ? burst : steady;
    unsigned high = wanted > max ? max : (unsigned)wanted;
    high = min_of(max_of(high, min), max);
    return (struct sp_pool_marks){.low = high - high / 4, .high = high};
}

void sp_pool_share(struct sp_pool_want *wants, size_t n, unsigned max_members, int64_t max_bytes)
{
    unsigned turn = 0;
    bool given = true;
    /* `turn` members have been granted to each that wants so many. */
    for (; given; turn++) {
        given = false;
        for (size_t i = 0; i < n; i++) {
            struct sp_pool_want *want = &wants[i];
            if (want->marks.high <= turn)
                continue;
            if (max_members == 0 || max_bytes < want->member_bytes) {
                want->marks.high = turn;
                continue;
            }
            max_members--;
            max_bytes -= want->member_bytes;
            given = true;
        }
    }
    for (size_t i = 0; i < n; i++)
        wants[i].marks.low = min_of(wants[i].marks.low, wants[i].marks.high);
}
