#include "os/fdpass.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"

union control {
    struct cmsghdr align;
    char space[CMSG_SPACE(sizeof(int) * SP_FDPASS_MAX)];
};

static bool wait_for(int fd, short events, int timeout_ms, GError **error)
{
    int64_t end = sp_time_monotonic_ms() + timeout_ms;
    for (;;) {
        int64_t left = end - sp_time_monotonic_ms();
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, timeout_ms < 0 ? -1 : left > 0 ? (int)left : 0);
        if (n > 0)
            return true;
        if (n == 0) {
            g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "no answer within %d ms",
                        timeout_ms);
            return false;
        }
        if (errno != EINTR) {
            sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "poll");
            return false;
        }
    }
}

bool sp_fdpass_send(int socket_fd, const void *bytes, size_t len, const int *fds, unsigned n_fds,
                    int timeout_ms, GError **error)
{
    g_assert(n_fds <= SP_FDPASS_MAX);
    union control control;
    memset(&control, 0, sizeof control);
    struct iovec iov = {.iov_base = (void *)bytes, .iov_len = len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds) {
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
    }
    for (;;) {
        ssize_t n = sendmsg(socket_fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0)
            return true; /* SEQPACKET: all or nothing */
        if (errno == EAGAIN) {
            if (!wait_for(socket_fd, POLLOUT, timeout_ms, error))
                return false;
        } else if (errno != EINTR) {
            sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "sendmsg");
            return false;
        }
    }
}

/* Collects the fds of a message; false when the control data was cut off. */
static bool take_fds(struct msghdr *msg, int *ret_fds, unsigned *ret_n_fds)
{
    unsigned n = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        unsigned k = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (unsigned i = 0; i < k; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
            if (n < SP_FDPASS_MAX)
                ret_fds[n++] = fd;
            else
                close(fd);
        }
    }
    *ret_n_fds = n;
    return !(msg->msg_flags & (MSG_TRUNC | MSG_CTRUNC));
}

bool sp_fdpass_receive(int socket_fd, void *bytes, size_t size, size_t *ret_len,
                       int ret_fds[SP_FDPASS_MAX], unsigned *ret_n_fds, int timeout_ms,
                       GError **error)
{
    union control control;
    ssize_t n;
    struct iovec iov = {.iov_base = bytes, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    do {
        if (!wait_for(socket_fd, POLLIN, timeout_ms, error))
            return false;
        msg.msg_control = &control;
        msg.msg_controllen = sizeof control;
        n = recvmsg(socket_fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (n < 0 && (errno == EINTR || errno == EAGAIN));
    if (n < 0) {
        sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "recvmsg");
        return false;
    }
    int fds[SP_FDPASS_MAX];
    unsigned n_fds = 0;
    if (!take_fds(&msg, fds, &n_fds)) {
        for (unsigned i = 0; i < n_fds; i++)
            close(fds[i]);
        g_set_error_literal(error, SP_ERROR, SP_ERROR_INTERNAL, "the message is too large");
        return false;
    }
    memcpy(ret_fds, fds, sizeof(int) * n_fds);
    *ret_n_fds = n_fds;
    *ret_len = (size_t)n;
    return true;
}
