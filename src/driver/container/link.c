/* The agent's socket. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "driver/container/container.h"

#define BACKLOG 4
#define CONNECT_MS 5000

/* sun_path holds 108 bytes (unix(7)), a state directory may be deeper: the address goes through an
 * fd of the run directory. */
static int open_address(const char *run_dir, struct sockaddr_un *ret_address, GError **error)
{
    int dir = open(run_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", run_dir);
        return -1;
    }
    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    g_snprintf(ret_address->sun_path, sizeof ret_address->sun_path, "/proc/self/fd/%d/%s", dir,
               SP_CONTAINER_SOCKET);
    return dir;
}

int sp_container_listen(const char *run_dir, GError **error)
{
    struct sockaddr_un address;
    SP_CLEANUP(sp_close_fdp) int dir = open_address(run_dir, &address, error);
    if (dir < 0)
        return -1;
    SP_CLEANUP(sp_close_fdp) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        fchmodat(dir, SP_CONTAINER_SOCKET, 0600, 0) == 0 && listen(fd, BACKLOG) == 0)
        return sp_steal_fd(&fd);
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "listen on %s/%s", run_dir,
                       SP_CONTAINER_SOCKET);
    return -1;
}

int sp_container_connect(struct sp_instance *instance, GError **error)
{
    struct sp_container *container = (struct sp_container *)instance;
    struct sockaddr_un address;
    SP_CLEANUP(sp_close_fdp) int dir = open_address(container->run_dir, &address, error);
    if (dir < 0)
        return -1;
    SP_CLEANUP(sp_close_fdp)
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int64_t end = sp_time_monotonic_ms() + CONNECT_MS;
    while (fd >= 0) {
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
            return sp_steal_fd(&fd);
        /* EAGAIN: the queue of connections is full; only the agent's accept makes room, and nothing
         * tells when. */
        if ((errno != EAGAIN && errno != EINTR) || sp_time_monotonic_ms() >= end)
            break;
        /* Woken early by the sandbox's end. */
        struct pollfd p = {.fd = container->pidfd, .events = POLLIN};
        if (poll(&p, 1, 5) > 0)
            break;
    }
    sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "connect to the agent");
    return -1;
}
