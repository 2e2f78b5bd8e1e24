#include "os/pidfd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"

int sp_pidfd_open(pid_t pid, GError **error)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        sp_error_set_errno(error, errno == ESRCH ? SP_ERROR_NOT_FOUND : SP_ERROR_INTERNAL, errno,
                           "pidfd of process %d", (int)pid);
    return fd;
}

bool sp_pidfd_signal(int pidfd, int signal, GError **error)
{
    if (syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0) == 0 || errno == ESRCH)
        return true;
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "signal %d by pidfd", signal);
    return false;
}

bool sp_pidfd_wait(int pidfd, int timeout_ms)
{
    int64_t end = sp_time_monotonic_ms() + timeout_ms;
    for (;;) {
        int64_t left = end - sp_time_monotonic_ms();
        struct pollfd p = {.fd = pidfd, .events = POLLIN};
        int n = poll(&p, 1, left > 0 ? (int)left : 0);
        if (n > 0)
            return (p.revents & (POLLIN | POLLHUP)) != 0;
        if (n == 0 || errno != EINTR)
            return false;
    }
}

bool sp_pidfd_kill(int pidfd, int timeout_ms, GError **error)
{
    if (!sp_pidfd_signal(pidfd, SIGKILL, error))
        return false;
    if (sp_pidfd_wait(pidfd, timeout_ms))
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "the process still runs %d ms after SIGKILL",
                timeout_ms);
    return false;
}

bool sp_process_start_ticks(pid_t pid, uint64_t *ret_ticks, GError **error)
{
    char path[64], text[1024];
    g_snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    int err = errno;
    if (fd >= 0)
        close(fd);
    if (n <= 0) {
        bool gone = n < 0 && (err == ENOENT || err == ESRCH);
        sp_error_set_errno(error, gone ? SP_ERROR_NOT_FOUND : SP_ERROR_INTERNAL, n < 0 ? err : EIO,
                           "%s", path);
        return false;
    }
    text[n] = '\0';
    /* The name (field 2) may hold spaces and parentheses: count from the last one. Field 3 follows.
     */
    const char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++) {
        at = strchr(at, ' ');
        if (at)
            at++;
    }
    char *end = NULL;
    errno = 0;
    uint64_t ticks = at ? g_ascii_strtoull(at, &end, 10) : 0;
    if (!at || end == at || errno) {
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "%s: no start time", path);
        return false;
    }
    *ret_ticks = ticks;
    return true;
}
