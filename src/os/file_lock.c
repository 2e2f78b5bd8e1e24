#include "os/file_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"

#define RETRY_US 20000

int sp_file_lock(const char *path, int64_t timeout_ms, GError **error)
{
    int64_t deadline_ms = sp_time_monotonic_ms() + timeout_ms;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", path);
        return -1;
    }
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EINTR && (errno != EWOULDBLOCK || sp_time_monotonic_ms() >= deadline_ms)) {
            sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "lock %s", path);
            close(fd);
            return -1;
        }
        /* A blocking flock has no deadline. */
        g_usleep(RETRY_US);
    }
    return fd;
}
