#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/container/container.h"
#include "os/mount.h"

struct sp_container_dev {
    int fd;     /* the mount */
    char *path; /* where it is attached, NULL when it is not */
};

/* /dev/tty stays, although CRIU cannot save a shell that keeps it open on a terminal of the
 * agent's: programs that ask at the terminal need it, and such a save is refused, no more. */
static const struct {
    const char *name;
    unsigned major, minor;
} nodes[] = {{"null", 1, 3},   {"zero", 1, 5},    {"full", 1, 7},
             {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}};

static const struct {
    const char *name, *to;
} links[] = {{"fd", "/proc/self/fd"},
             {"stdin", "/proc/self/fd/0"},
             {"stdout", "/proc/self/fd/1"},
             {"stderr", "/proc/self/fd/2"},
             {"ptmx", "pts/ptmx"}};

static const char *const dirs[] = {"pts", "shm", ".space", ".space/link"};

static bool fail(const char *name, GError **error)
{
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "make /dev/%s of the containers", name);
    return false;
}

/* Modes are set again, since the process's umask takes bits away. */
static bool fill(int fd, GError **error)
{
    for (size_t i = 0; i < G_N_ELEMENTS(nodes); i++)
        if (mknodat(fd, nodes[i].name, S_IFCHR | 0666, makedev(nodes[i].major, nodes[i].minor)) <
                0 ||
            fchmodat(fd, nodes[i].name, 0666, 0) < 0)
            return fail(nodes[i].name, error);
    for (size_t i = 0; i < G_N_ELEMENTS(links); i++)
        if (symlinkat(links[i].to, fd, links[i].name) < 0)
            return fail(links[i].name, error);
    for (size_t i = 0; i < G_N_ELEMENTS(dirs); i++)
        if (mkdirat(fd, dirs[i], 0755) < 0 || fchmodat(fd, dirs[i], 0755, 0) < 0)
            return fail(dirs[i], error);
    return true;
}

static bool copy_agent(int fd, const char *agent_path, GError **error)
{
    g_autofree char *bytes = NULL;
    gsize len = 0;
    if (!g_file_get_contents(agent_path, &bytes, &len, error)) {
        g_prefix_error(error, "the agent: ");
        return false;
    }
    SP_CLEANUP(sp_close_fdp)
    int file = openat(fd, ".space/agent", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0555);
    for (gsize done = 0; file >= 0 && done < len;) {
        ssize_t n = write(file, bytes + done, len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail(".space/agent", error);
        done += (gsize)n;
    }
    return (file >= 0 && fchmod(file, 0555) == 0) || fail(".space/agent", error);
}

/* Puts it where open_tree(2) of older kernels accepts it. A mount of a worker that was killed may
 * be there: it goes, sandboxes keep their copies. */
static bool attach(struct sp_container_dev *dev, const char *state_dir, GError **error)
{
    dev->path = g_build_filename(state_dir, "run", "container-dev", NULL);
    if (g_mkdir_with_parents(dev->path, 0700) < 0)
        return fail("", error);
    return sp_mount_detach(dev->path, error) && sp_mount_attach(dev->fd, dev->path, error);
}

struct sp_container_dev *sp_container_dev_new(const char *state_dir, const char *agent_path,
                                              bool attached, GError **error)
{
    const char *const options[] = {"source", "dev", "mode", "0755", "size", "32m", NULL};
    struct sp_container_dev *dev = g_new0(struct sp_container_dev, 1);
    dev->fd = sp_mount_new("tmpfs", options, SP_ATTR_NOSUID, error);
    if (dev->fd >= 0 && fill(dev->fd, error) && copy_agent(dev->fd, agent_path, error) &&
        sp_mount_set(dev->fd, SP_ATTR_RDONLY | SP_ATTR_NOSUID, -1, error) &&
        (!attached || attach(dev, state_dir, error)))
        return dev;
    sp_container_dev_free(dev);
    return NULL;
}

void sp_container_dev_free(struct sp_container_dev *dev)
{
    if (!dev)
        return;
    if (dev->path) {
        sp_mount_detach(dev->path, NULL);
        rmdir(dev->path);
    }
    if (dev->fd >= 0)
        close(dev->fd);
    g_free(dev->path);
    g_free(dev);
}

int sp_container_dev_take(struct sp_container_dev *dev)
{
    int fd = sp_steal_fd(&dev->fd);
    sp_container_dev_free(dev);
    return fd;
}

int sp_container_dev_clone(const struct sp_container_dev *dev, GError **error)
{
    return sp_mount_clone(dev->fd, "", false, error);
}
