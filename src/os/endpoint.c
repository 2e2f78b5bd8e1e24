#include "os/endpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"

/* Opens dir and fills the address of dir/name; the directory's fd has to stay open while the
 * address is used. -1 with errno. */
static int name_in(const char *dir, const char *name, struct sockaddr_un *ret_address)
{
    int dirfd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dirfd < 0)
        return -1;
    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(ret_address->sun_path, sizeof ret_address->sun_path, "/proc/self/fd/%d/%s",
                     dirfd, name);
    if (n >= (int)sizeof ret_address->sun_path) {
        close(dirfd);
        errno = ENAMETOOLONG;
        return -1;
    }
    return dirfd;
}

int sp_endpoint_listen(const char *dir, const char *name, GError **error)
{
    struct sockaddr_un address;
    int dirfd = name_in(dir, name, &address);
    int fd = dirfd < 0 ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        goto fail;
    if (unlinkat(dirfd, name, 0) < 0 && errno != ENOENT)
        goto fail;
    if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0 ||
        fchmodat(dirfd, name, 0600, 0) < 0 || listen(fd, 8) < 0)
        goto fail;
    close(dirfd);
    return fd;
fail:
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "listen on %s/%s", dir, name);
    if (fd >= 0)
        close(fd);
    if (dirfd >= 0)
        close(dirfd);
    return -1;
}

/* A full backlog gives EAGAIN at once and no event to wait for: tried again every millisecond. */
static int connect_until(int fd, const struct sockaddr_un *address, int64_t deadline_ms)
{
    while (connect(fd, (const struct sockaddr *)address, sizeof *address) < 0) {
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN || sp_time_monotonic_ms() >= deadline_ms)
            return -1;
        g_usleep(1000);
    }
    return 0;
}

static int new_socket(void)
{
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

struct making {
    int pidfd, fd, failed_errno;
};

/* In a thread of its own, since setns(2) changes the thread for good. */
static gpointer make_there(gpointer argument)
{
    struct making *making = argument;
    making->fd = setns(making->pidfd, CLONE_NEWNET) < 0 ? -1 : new_socket();
    making->failed_errno = errno;
    return NULL;
}

static int new_socket_of(int pidfd)
{
    struct making making = {.pidfd = pidfd, .fd = -1};
    g_thread_join(g_thread_new("connect", make_there, &making));
    errno = making.failed_errno;
    return making.fd;
}

/* Takes fd, -1 with errno too. A connection, or -1 with errno. */
static int connect_socket(int fd, const struct sockaddr_un *address, int64_t timeout_ms)
{
    if (fd < 0 || connect_until(fd, address, sp_time_monotonic_ms() + timeout_ms) == 0)
        return fd;
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

static int connect_code(void)
{
    return errno == ENOENT || errno == ECONNREFUSED ? SP_ERROR_NOT_FOUND
           : errno == EAGAIN                        ? SP_ERROR_UNAVAILABLE
                                                    : SP_ERROR_INTERNAL;
}

int sp_endpoint_connect(const char *dir, const char *name, int64_t timeout_ms, GError **error)
{
    struct sockaddr_un address;
    int dirfd = name_in(dir, name, &address);
    int fd = dirfd < 0 ? -1 : connect_socket(new_socket(), &address, timeout_ms);
    if (fd < 0)
        sp_error_set_errno(error, connect_code(), errno, "connect to %s/%s", dir, name);
    if (dirfd >= 0)
        close(dirfd);
    return fd;
}

int sp_endpoint_connect_from(int pidfd, int file_fd, int64_t timeout_ms, GError **error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d", file_fd);
    int fd = connect_socket(new_socket_of(pidfd), &address, timeout_ms);
    if (fd < 0)
        sp_error_set_errno(error, connect_code(), errno, "connect to the socket");
    return fd;
}
