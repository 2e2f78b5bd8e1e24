#include "driver/microvm/track.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/microvm/uffd/uffd_open.h"
#include "os/cleanup.h"

/* linux/userfaultfd.h of Linux 6.7; the build host's may be older. UNPOPULATED and SHMEM: what
 * WP_ASYNC needs for maps of files. */
#define FEATURE_WP_HUGETLBFS_SHMEM (UINT64_C(1) << 12)
#define FEATURE_WP_UNPOPULATED (UINT64_C(1) << 13)
#define FEATURE_WP_ASYNC (UINT64_C(1) << 15)
#define FEATURES                                                                                   \
    (UFFD_FEATURE_PAGEFAULT_FLAG_WP | FEATURE_WP_HUGETLBFS_SHMEM | FEATURE_WP_UNPOPULATED |        \
     FEATURE_WP_ASYNC)

struct sp_tracker {
    int fd; /* a duplicate of QEMU's userfaultfd */
    struct uffdio_range range;
};

bool sp_tracker_possible(GError **error)
{
    struct uffdio_api api = {.api = UFFD_API, .features = FEATURES};
    SP_CLEANUP(sp_close_fdp) int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        sp_error_set_errno(error, SP_ERROR_UNSUPPORTED, errno, "userfaultfd");
        return false;
    }
    if (ioctl(fd, UFFDIO_API, &api) == 0)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED,
                "the kernel cannot track writes (userfaultfd WP_ASYNC, Linux 6.7)");
    return false;
}

/* QEMU is not trusted: what it has there may be anything. */
static bool is_userfaultfd(int fd)
{
    char path[64];
    char target[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0)
        return false;
    target[n] = '\0';
    return strcmp(target, "anon_inode:[userfaultfd]") == 0;
}

/* The API call is answered once in the life of a userfaultfd; after that it fails, and the
 * registration tells whether it is in order. */
static bool begin(int fd, const struct uffdio_range *range)
{
    struct uffdio_api api = {.api = UFFD_API, .features = FEATURES};
    struct uffdio_register reg = {.range = *range, .mode = UFFDIO_REGISTER_MODE_WP};
    if (ioctl(fd, UFFDIO_API, &api) < 0 && errno != EINVAL)
        return false;
    return ioctl(fd, UFFDIO_REGISTER, &reg) == 0;
}

struct sp_tracker *sp_tracker_open(int pidfd, const struct sp_guest_ram *ram, GError **error)
{
    const struct uffdio_range range = {.start = ram->address, .len = (uint64_t)ram->size_bytes};
    SP_CLEANUP(sp_close_fdp) int fd = (int)syscall(SYS_pidfd_getfd, pidfd, SP_UFFD_FD, 0);
    if (fd < 0) {
        sp_error_set_errno(error, SP_ERROR_UNSUPPORTED, errno, "the VM's userfaultfd");
        return NULL;
    }
    if (!is_userfaultfd(fd)) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "the VM has no userfaultfd");
        return NULL;
    }
    if (!begin(fd, &range)) {
        sp_error_set_errno(error, SP_ERROR_UNSUPPORTED, errno, "track the VM's writes");
        return NULL;
    }
    struct sp_tracker *tracker = g_new0(struct sp_tracker, 1);
    tracker->fd = sp_steal_fd(&fd);
    tracker->range = range;
    return tracker;
}

void sp_tracker_free(struct sp_tracker *tracker)
{
    if (!tracker)
        return;
    /* Fails when the VM has ended, and then nothing is left to do. */
    ioctl(tracker->fd, UFFDIO_UNREGISTER, &tracker->range);
    close(tracker->fd);
    g_free(tracker);
}
