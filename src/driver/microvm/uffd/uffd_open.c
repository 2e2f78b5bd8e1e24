/*
 * A library that is loaded into QEMU (LD_PRELOAD) and has one job: to open a userfaultfd(2) for a
 * range of QEMU's memory, in the asynchronous write-protect mode, and hand it over.
 *
 * Only the owner of memory can do that; everything else about tracking is the worker's
 * (driver/microvm/track.h). One thread waits on the listening socket that QEMU's process has got as
 * fd SP_UFFD_SOCKET. Who connects (root: it lies in the run directory) sends struct sp_uffd_range
 * and gets one byte: 0 and the fd (SCM_RIGHTS, unix(7)), or an errno. The library keeps nothing:
 * when the receiver closes the fd, tracking ends.
 *
 * UFFD_USER_MODE_ONLY: an unprivileged process may have no other (vm.unprivileged_userfaultfd = 0).
 * With WP_ASYNC no fault is ever delivered, in either mode; writes of the kernel for QEMU (reads of
 * a disk into guest RAM) are tracked all the same.
 */
#include "driver/microvm/uffd/uffd_open.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

/* linux/userfaultfd.h of Linux 6.7; the build host's may be older. */
#define FEATURE_WP_HUGETLBFS_SHMEM ((uint64_t)1 << 12)
#define FEATURE_WP_UNPOPULATED ((uint64_t)1 << 13)
#define FEATURE_WP_ASYNC ((uint64_t)1 << 15)
#define USER_MODE_ONLY 1

#define STACK_BYTES (128 * 1024)

/* The fd, or -errno. */
static int track(const struct sp_uffd_range *range)
{
    struct uffdio_api api = {
        .api = UFFD_API,
        .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | FEATURE_WP_HUGETLBFS_SHMEM |
                    FEATURE_WP_UNPOPULATED | FEATURE_WP_ASYNC,
    };
    struct uffdio_register reg = {
        .range = {.start = range->start, .len = range->length_bytes},
        .mode = UFFDIO_REGISTER_MODE_WP,
    };
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | USER_MODE_ONLY);
    if (fd < 0)
        return -errno;
    if (ioctl(fd, UFFDIO_API, &api) == 0 && ioctl(fd, UFFDIO_REGISTER, &reg) == 0)
        return fd;
    int failure = -errno;
    close(fd);
    return failure;
}

static void answer(int conn, int fd)
{
    uint8_t status = fd < 0 ? (uint8_t)-fd : 0;
    struct iovec iov = {.iov_base = &status, .iov_len = 1};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        msg.msg_control = &control;
        msg.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    sendmsg(conn, &msg, MSG_NOSIGNAL);
}

static void *serve(void *unused)
{
    (void)unused;
    for (;;) {
        int conn = accept4(SP_UFFD_SOCKET, NULL, NULL, SOCK_CLOEXEC);
        if (conn < 0 && errno != EINTR && errno != ECONNABORTED && errno != EMFILE)
            return NULL;
        if (conn < 0)
            continue;
        struct timeval limit = {.tv_sec = 1};
        struct sp_uffd_range range;
        setsockopt(conn, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        if (recv(conn, &range, sizeof range, MSG_WAITALL) == (ssize_t)sizeof range) {
            int fd = track(&range);
            answer(conn, fd);
            if (fd >= 0)
                close(fd);
        }
        close(conn);
    }
}

/* Before main(): QEMU's seccomp filter, which comes later, holds for this thread too. No signal of
 * QEMU's is ever handled by it. */
__attribute__((constructor)) static void start(void)
{
    sigset_t all, before;
    pthread_attr_t attr;
    pthread_t thread;
    unsetenv("LD_PRELOAD");
    sigfillset(&all);
    if (pthread_attr_init(&attr) != 0)
        return;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_create(&thread, &attr, serve, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
}
