#include "disk/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <linux/major.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"

#define ATTACH_MS 10000

/* Opens /dev/loopN; makes the node where /dev is not a devtmpfs (a chroot, a container). */
static int open_device(int number, bool read_only, char path[SP_LOOP_PATH_MAX])
{
    g_snprintf(path, SP_LOOP_PATH_MAX, "/dev/loop%d", number);
    int flags = (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC;
    int fd = open(path, flags);
    if (fd < 0 && errno == ENOENT &&
        mknod(path, S_IFBLK | 0600, makedev(LOOP_MAJOR, (unsigned)number)) == 0) {
        fd = open(path, flags);
    }
    return fd;
}

/* Tries the settings from best to plainest: what is not possible depends on the backing file
 * system. */
static int configure(int device, int backing_fd, bool read_only)
{
    static const struct {
        unsigned flags, block_size;
    } tries[] = {{LO_FLAGS_DIRECT_IO, 4096}, {LO_FLAGS_DIRECT_IO, 0}, {0, 4096}, {0, 0}};
    for (size_t i = 0; i < G_N_ELEMENTS(tries); i++) {
        struct loop_config config = {
            .fd = (unsigned)backing_fd,
            .block_size = tries[i].block_size,
            .info.lo_flags =
                LO_FLAGS_AUTOCLEAR | tries[i].flags | (read_only ? LO_FLAGS_READ_ONLY : 0),
        };
        if (ioctl(device, LOOP_CONFIGURE, &config) == 0) {
            return 0;
        }
        if (errno != EINVAL && errno != EOPNOTSUPP) {
            break;
        }
    }
    return -1;
}

/* The device that has this file already, opened; -1 when there is none. Another mount namespace may
 * keep a device alive after our unmount. A second one over the same file would be a second cache
 * over the same blocks: file systems get corrupted that way. */
static int find_attached(int backing_fd, bool read_only, char ret_path[SP_LOOP_PATH_MAX])
{
    struct stat file;
    g_autoptr(GDir) dir = g_dir_open("/sys/block", 0, NULL);
    const char *name;
    if (!dir || fstat(backing_fd, &file) < 0)
        return -1;
    while ((name = g_dir_read_name(dir))) {
        int number;
        char end;
        g_autofree char *bound = g_strdup_printf("/sys/block/%s/loop/backing_file", name);
        if (sscanf(name, "loop%d%c", &number, &end) != 1 || access(bound, F_OK) < 0)
            continue;
        int device = open_device(number, read_only, ret_path);
        struct loop_info64 info;
        if (device >= 0 && ioctl(device, LOOP_GET_STATUS64, &info) == 0 &&
            info.lo_device == file.st_dev && info.lo_inode == file.st_ino &&
            !(info.lo_flags & LO_FLAGS_READ_ONLY) == !read_only)
            return device;
        if (device >= 0)
            close(device);
    }
    return -1;
}

int sp_loop_attach(int backing_fd, bool read_only, char ret_path[SP_LOOP_PATH_MAX], GError **error)
{
    int attached = find_attached(backing_fd, read_only, ret_path);
    if (attached >= 0)
        return attached;
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0) {
        sp_error_set_errno(error, SP_ERROR_UNSUPPORTED, errno, "open /dev/loop-control");
        return -1;
    }
    int64_t deadline = sp_time_monotonic_ms() + ATTACH_MS;
    int device = -1, failure;
    do {
        int number = ioctl(control, LOOP_CTL_GET_FREE);
        if (number < 0) {
            failure = errno;
            break;
        }
        char path[SP_LOOP_PATH_MAX];
        device = open_device(number, read_only, path);
        if (device < 0) {
            failure = errno;
        } else if (configure(device, backing_fd, read_only) == 0) {
            g_strlcpy(ret_path, path, SP_LOOP_PATH_MAX);
            close(control);
            return device;
        } else {
            failure = errno;
            close(device);
        }
        if (failure == EBUSY) {
            g_usleep(1000); /* somebody else took it between the two calls: no event tells when */
        }
    } while (failure == EBUSY && sp_time_monotonic_ms() < deadline);
    close(control);
    sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, failure, "attach a loop device");
    return -1;
}

char *sp_loop_backing_file(const char *path)
{
    if (!g_str_has_prefix(path, "/dev/loop")) {
        return NULL;
    }
    g_autofree char *attribute =
        g_strdup_printf("/sys/block/%s/loop/backing_file", path + strlen("/dev/"));
    g_autofree char *text = NULL;
    if (!g_file_get_contents(attribute, &text, NULL, NULL)) {
        return NULL;
    }
    return g_strdup(g_strchomp(text));
}
