#include "driver/microvm/tsc.h"

#include <stdint.h>
#include <time.h>

#include <glib.h>

#ifdef __x86_64__
#include <x86intrin.h>

struct sample {
    uint64_t tsc;
    int64_t ns;
};

static int64_t raw_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_RAW, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* The best of several readings: the one during which the least time passed between the two clocks.
 */
static struct sample take_sample(void)
{
    struct sample best = {0};
    uint64_t best_width = UINT64_MAX;
    for (int i = 0; i < 50; i++) {
        uint64_t before = __rdtsc();
        int64_t ns = raw_ns();
        uint64_t after = __rdtsc();
        if (after - before < best_width) {
            best_width = after - before;
            best = (struct sample){.tsc = before + (after - before) / 2, .ns = ns};
        }
    }
    return best;
}

unsigned sp_tsc_measure_khz(void)
{
    struct sample first = take_sample();
    g_usleep(50000); /* the measurement itself */
    struct sample last = take_sample();
    if (last.ns <= first.ns || last.tsc <= first.tsc)
        return 0;
    double khz = (double)(last.tsc - first.tsc) * 1e6 / (double)(last.ns - first.ns);
    if (khz < 100e3 || khz > 20e6)
        return 0;
    return (unsigned)(khz + 0.5);
}

#else

unsigned sp_tsc_measure_khz(void)
{
    return 0;
}

#endif
