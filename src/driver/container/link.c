/* The agent's socket: on a small mount inside the sandbox, which only root inside can reach. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/container/container.h"
#include "os/endpoint.h"
#include "os/pidfd.h"

#define CONNECT_MS 5000
#define SOCKET_PATH SP_CONTAINER_LINK_DIR "/" SP_CONTAINER_SOCKET

/* The sandbox's root directory; surely its own, since the process is still there afterwards. */
static int open_root(const struct sp_container *container, GError **error)
{
    char path[40];
    g_snprintf(path, sizeof path, "/proc/%d/root", (int)container->record.pid);
    SP_CLEANUP(sp_close_fdp) int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int failed = errno;
    if (sp_pidfd_wait(container->pidfd, 0)) {
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "%s has ended", container->record.id);
        return -1;
    }
    if (fd < 0)
        sp_error_set_errno(error, SP_ERROR_INTERNAL, failed, "open %s", path);
    return sp_steal_fd(&fd);
}

/* The path lies on mounts that the sandbox cannot change, but for the last name: root inside could
 * put another socket of the sandbox there. No link leads out. */
static int open_socket(int root, GError **error)
{
    const struct open_how how = {
        .flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
        .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    SP_CLEANUP(sp_close_fdp)
    int fd = (int)syscall(SYS_openat2, root, SOCKET_PATH, &how, sizeof how);
    struct stat st;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode))
        return sp_steal_fd(&fd);
    if (fd >= 0)
        errno = ENOTSOCK;
    sp_error_set_errno(error, errno == ENOENT ? SP_ERROR_NOT_FOUND : SP_ERROR_INTERNAL, errno,
                       "the agent's socket");
    return -1;
}

/* Both ends are of the sandbox's network namespace, where CRIU looks for the one that it has. */
int sp_container_connect(struct sp_instance *instance, GError **error)
{
    const struct sp_container *container = (struct sp_container *)instance;
    if (g_atomic_int_get(&container->dumping)) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the memory of %s is being saved",
                    container->record.id);
        return -1;
    }
    SP_CLEANUP(sp_close_fdp) int root = open_root(container, error);
    SP_CLEANUP(sp_close_fdp) int socket = root < 0 ? -1 : open_socket(root, error);
    return socket < 0 ? -1 : sp_endpoint_connect_from(container->pidfd, socket, CONNECT_MS, error);
}
