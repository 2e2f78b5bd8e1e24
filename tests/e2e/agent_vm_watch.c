/*
 * A program for test_agent_vm.py: it runs in a machine that is saved and restored and tells what its
 * first instruction in another life sees. "khz" prints the rate of the time stamp counter.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#define LINE_BYTES 44

static volatile sig_atomic_t told;

static void restored(int signal)
{
    (void)signal;
    told++;
}

static long long clock_ms(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int print_khz(void)
{
    uint64_t tsc = __rdtsc();
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC_RAW, &from);
    usleep(100000);
    uint64_t ticks = __rdtsc() - tsc;
    clock_gettime(CLOCK_MONOTONIC_RAW, &to);
    double ms = (double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) / 1e6;
    printf("%.0f\n", (double)ticks / ms);
    return 0;
}

int main(int argc, char **argv)
{
    char path[64], line[LINE_BYTES], host[65] = "";
    if (argc > 1 && strcmp(argv[1], "khz") == 0)
        return print_khz();
    signal(SIGUSR2, restored);
    snprintf(path, sizeof path, "/run/space/restored/%d", (int)getpid());
    int fd = open("/run/space/generation", O_RDONLY);
    if (fd < 0 || open(path, O_WRONLY | O_CREAT, 0600) < 0)
        return 1;
    const char *now = mmap(NULL, LINE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (now == MAP_FAILED)
        return 1;
    memcpy(line, now, LINE_BYTES);
    setvbuf(stdout, NULL, _IONBF, 0);
    printf("ready\n");
    for (long long tick = 0;;) {
        if (memcmp(line, now, LINE_BYTES) != 0) {
            int heard = told;
            long long realtime = clock_ms(CLOCK_REALTIME);
            unsigned long long bytes = 0;
            (void)!getrandom(&bytes, sizeof bytes, 0);
            gethostname(host, sizeof host - 1);
            memcpy(line, now, LINE_BYTES);
            dprintf(1, "woke %d %lld %016llx %s %.43s\n", heard, realtime, bytes, host, line);
        }
        if (clock_ms(CLOCK_MONOTONIC) >= tick + 100) {
            tick = clock_ms(CLOCK_MONOTONIC);
            dprintf(1, "tick\n");
        }
    }
}
