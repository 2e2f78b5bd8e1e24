/* The only program in the live test's guest (static): what a test asks, by argv[1]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

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
