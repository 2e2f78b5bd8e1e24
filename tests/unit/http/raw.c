#include "raw.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/time.h"

int raw_connect(const char *address)
{
    const char *colon = strrchr(address, ':');
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpint(connect(fd, (struct sockaddr *)&to, sizeof(to)), ==, 0);
    return fd;
}

void raw_send(int fd, const char *bytes, gsize len)
{
    while (len > 0) {
        const ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);
        if (n < 0)
            return; /* the server has closed: its answer tells */
        bytes += n;
        len -= (gsize)n;
    }
}

bool raw_read_until(int fd, GString *into, const char *needle, int64_t timeout_ms)
{
    const int64_t deadline_ms = sp_time_monotonic_ms() + timeout_ms;
    for (;;) {
        if (needle && strstr(into->str, needle))
            return true;
        const int64_t left_ms = deadline_ms - sp_time_monotonic_ms();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (left_ms <= 0 || poll(&p, 1, (int)left_ms) <= 0)
            return false;
        char buffer[4096];
        const ssize_t n = recv(fd, buffer, sizeof(buffer), 0);
        if (n <= 0)
            return needle == NULL;
        g_string_append_len(into, buffer, n);
    }
}

char *raw_exchange(const char *address, const char *bytes, gsize len)
{
    const int fd = raw_connect(address);
    GString *answer = g_string_new(NULL);
    raw_send(fd, bytes, len);
    g_assert_true(raw_read_until(fd, answer, NULL, 5000));
    close(fd);
    return g_string_free(answer, FALSE);
}

int raw_status(const char *answer)
{
    return g_str_has_prefix(answer, "HTTP/1.1 ") ? (int)strtol(answer + 9, NULL, 10) : 0;
}
