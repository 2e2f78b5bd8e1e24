#include "http/internal.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/time.h"

#define PATIENCE_MS 2000

static bool wait_for(int fd, short events, int64_t deadline_ms)
{
    struct pollfd p = {.fd = fd, .events = events};
    const int64_t left_ms = deadline_ms - sp_time_monotonic_ms();
    return left_ms > 0 && poll(&p, 1, (int)left_ms) > 0;
}

static void send_all(int fd, const char *bytes, size_t len)
{
    const int64_t deadline_ms = sp_time_monotonic_ms() + PATIENCE_MS;
    while (len > 0) {
        const ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            bytes += n;
            len -= (size_t)n;
        } else if ((n < 0 && errno != EAGAIN && errno != EINTR) ||
                   !wait_for(fd, POLLOUT, deadline_ms)) {
            return;
        }
    }
}

void sp_http_refuse_raw(struct sp_http_request *request, const GError *error)
{
    const int status = sp_error_http_status(error);
    g_autofree char *body = sp_http_error_text(request, error, -1);
    g_autofree char *text = g_strdup_printf(
        "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
        "X-Request-Id: %s\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n%s",
        status, MHD_get_reason_phrase_for((unsigned)status), strlen(body), request->id, body);
    send_all(request->conn->fd, text, strlen(text));
    request->answered = true;
    request->linger = true;
}

void sp_http_linger(int fd)
{
    static const size_t piece = 16 * 1024;
    const int64_t deadline_ms = sp_time_monotonic_ms() + PATIENCE_MS;
    g_autofree char *buffer = g_malloc(piece);
    shutdown(fd, SHUT_WR);
    for (;;) {
        const ssize_t n = recv(fd, buffer, piece, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return;
        /* Also ends for a client that sends without a pause. */
        if (sp_time_monotonic_ms() >= deadline_ms)
            return;
        if (n < 0 && !wait_for(fd, POLLIN, deadline_ms))
            return;
    }
}
