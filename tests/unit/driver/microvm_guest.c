/* The only program in the live test's guest (static): what a test asks, by argv[1]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* --- a process that lives on: a blob of random bytes and a counter, asked through a socket --- */

#define FILES 40

static uint64_t hash_of(uint64_t hash, const unsigned char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

static void fill_random(unsigned char *bytes, size_t len)
{
    uint64_t x;
    if (getrandom(&x, sizeof x, 0) != sizeof x)
        _exit(1);
    x |= 1;
    for (size_t i = 0; i + 8 <= len; i += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(bytes + i, &x, 8);
    }
}

static struct sockaddr_un address(void)
{
    return (struct sockaddr_un){.sun_family = AF_UNIX, .sun_path = "\0counter"};
}

/* mb of random bytes that stay; of dirty_mb some pages are written again every 10 ms. */
static int serve(int sock, size_t mb, size_t dirty_mb, unsigned pages)
{
    unsigned char *blob = malloc(mb << 20), *set = calloc(dirty_mb + 1, 1 << 20);
    unsigned long counter = 0;
    size_t at = 0;
    fill_random(blob, mb << 20);
    uint64_t hash = hash_of(0xcbf29ce484222325u, blob, mb << 20);
    if (listen(sock, 8) < 0)
        return 1;
    for (;;) {
        struct pollfd p = {.fd = sock, .events = POLLIN};
        if (poll(&p, 1, 10) <= 0) {
            counter++;
            for (unsigned i = 0; dirty_mb > 0 && i < pages; i++, at++)
                set[at % (dirty_mb << 8) << 12] = (unsigned char)counter;
            continue;
        }
        int fd = accept(sock, NULL, NULL);
        char text[128];
        int n = snprintf(text, sizeof text, "%d %lu %s", getpid(), counter,
                         hash_of(0xcbf29ce484222325u, blob, mb << 20) == hash ? "same" : "other");
        if (write(fd, text, (size_t)n) != n)
            return 1;
        close(fd);
    }
}

static int start_counter(int argc, char **argv)
{
    struct sockaddr_un a = address();
    int sock = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(sock, (struct sockaddr *)&a, sizeof a) < 0)
        return 1;
    return serve(sock, argc > 2 ? strtoul(argv[2], NULL, 10) : 8,
                 argc > 3 ? strtoul(argv[3], NULL, 10) : 0,
                 argc > 4 ? (unsigned)strtoul(argv[4], NULL, 10) : 128);
}

static int ask_counter(void)
{
    struct sockaddr_un a = address();
    char text[128];
    int sock = socket(AF_UNIX, SOCK_STREAM, 0);
    for (int i = 0; connect(sock, (struct sockaddr *)&a, sizeof a) < 0; i++) {
        if (i > 500)
            return 1;
        usleep(10000);
    }
    ssize_t n = read(sock, text, sizeof text);
    return n > 0 && write(1, text, (size_t)n) == n ? 0 : 1;
}

/* --- files that are not synced --- */

static int files(int make)
{
    static unsigned char bytes[100000];
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < FILES; i++) {
        char path[64];
        snprintf(path, sizeof path, "/file-%d", i);
        int fd = open(path, make ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY, 0600);
        if (make)
            fill_random(bytes, sizeof bytes);
        ssize_t n = make ? write(fd, bytes, sizeof bytes) : read(fd, bytes, sizeof bytes);
        if (n != sizeof bytes)
            return 1;
        hash = hash_of(hash, bytes, sizeof bytes);
        close(fd);
    }
    printf("%016lx", (unsigned long)hash);
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "random") == 0) {
        unsigned char bytes[16];
        if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
            return 1;
        for (unsigned i = 0; i < sizeof bytes; i++)
            printf("%02x", bytes[i]);
        return 0;
    }
    if (strcmp(what, "time") == 0) {
        printf("%lld", (long long)time(NULL));
        return 0;
    }
    if (strcmp(what, "counter") == 0)
        return start_counter(argc, argv);
    if (strcmp(what, "ask") == 0)
        return ask_counter();
    /* Files written, synced and read from the disk again, for ever. */
    while (strcmp(what, "churn") == 0) {
        int drop = open("/proc/sys/vm/drop_caches", O_WRONLY);
        if (files(1) != 0 || (sync(), drop >= 0 && write(drop, "1", 1) != 1) || files(0) != 0)
            return 1;
        close(drop);
    }
    if (strcmp(what, "write") == 0 || strcmp(what, "check") == 0)
        return files(what[0] == 'w');
    if (strcmp(what, "fill") == 0) {
        /* Writes until the disk is full; says how many MiB it took. */
        static char block[1 << 20];
        FILE *f = fopen("/tmp/../fill", "w");
        long n = 0;
        while (f && fwrite(block, sizeof block, 1, f) == 1)
            n++;
        printf("%ld", n);
        return 0;
    }
    if (strcmp(what, "eat") == 0) {
        /* Takes memory until it is killed. */
        for (;;) {
            char *p = malloc(1 << 20);
            if (!p)
                return 3;
            memset(p, 1, 1 << 20);
        }
    }
    return strcmp(what, "true") == 0 ? 0 : 2;
}
