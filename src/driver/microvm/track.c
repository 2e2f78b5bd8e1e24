#include "driver/microvm/track.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/microvm/uffd/uffd_open.h"
#include "driver/microvm/vmm.h"
#include "os/cleanup.h"
#include "os/endpoint.h"

#define TIMEOUT_MS 1000
#define FEATURE_WP_ASYNC (UINT64_C(1) << 15)

struct sp_tracker {
    int fd; /* the userfaultfd: tracking ends when it is closed */
};

bool sp_tracker_possible(void)
{
    SP_CLEANUP(sp_close_fdp) int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct uffdio_api api = {.api = UFFD_API};
    /* An API call without features answers with all that there are (ioctl_userfaultfd(2)). */
    return fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0 && (api.features & FEATURE_WP_ASYNC);
}

static int receive(int conn, GError **error)
{
    uint8_t status = 0;
    struct iovec iov = {.iov_base = &status, .iov_len = 1};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr msg = {
        .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof control,
    };
    ssize_t n = recvmsg(conn, &msg, MSG_CMSG_CLOEXEC);
    struct cmsghdr *c = n == 1 ? CMSG_FIRSTHDR(&msg) : NULL;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof(int))) {
        int fd;
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
        return fd;
    }
    sp_error_set_errno(error, SP_ERROR_UNSUPPORTED, n == 1 ? status : errno, "track writes");
    return -1;
}

struct sp_tracker *sp_tracker_open(const char *run_dir, const struct sp_guest_ram *ram,
                                   GError **error)
{
    struct sp_uffd_range range = {ram->address, (uint64_t)ram->size_bytes};
    struct timeval limit = {.tv_sec = TIMEOUT_MS / 1000};
    SP_CLEANUP(sp_close_fdp)
    int conn = sp_endpoint_connect(run_dir, SP_VMM_TRACK, TIMEOUT_MS, error);
    if (conn < 0)
        return NULL;
    int flags = fcntl(conn, F_GETFL);
    if (flags < 0 || fcntl(conn, F_SETFL, flags & ~O_NONBLOCK) < 0 ||
        setsockopt(conn, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) < 0 ||
        send(conn, &range, sizeof range, MSG_NOSIGNAL) != (ssize_t)sizeof range) {
        sp_error_set_errno(error, SP_ERROR_UNSUPPORTED, errno, "ask for write tracking");
        return NULL;
    }
    int fd = receive(conn, error);
    if (fd < 0)
        return NULL;
    struct sp_tracker *tracker = g_new0(struct sp_tracker, 1);
    tracker->fd = fd;
    return tracker;
}

void sp_tracker_free(struct sp_tracker *tracker)
{
    if (!tracker)
        return;
    close(tracker->fd);
    g_free(tracker);
}
