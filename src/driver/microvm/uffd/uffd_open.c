/*
 * A library that is loaded into QEMU (LD_PRELOAD) and does one thing, before main(): it opens a
 * userfaultfd(2) and leaves it at the fd number SP_UFFD_FD, where the library's own file was.
 *
 * Only the process that owns memory can open one for it. All else is done from outside by the
 * worker, which takes a duplicate with pidfd_getfd(2): driver/microvm/track.h. An idle userfaultfd
 * costs nothing, and a worker that is started again finds it in the same place. There is no thread,
 * no socket, nothing that is called later, and no libc.
 *
 * UFFD_USER_MODE_ONLY: an unprivileged process may have no other (vm.unprivileged_userfaultfd = 0).
 * A failure leaves the library's file there, which the worker tells from a userfaultfd.
 */
#include "driver/microvm/uffd/uffd_open.h"

#include <fcntl.h>

#include "os/raw_syscall.h"

#define USER_MODE_ONLY 1 /* linux/userfaultfd.h, Linux 5.11 */

__attribute__((constructor)) static void open_userfaultfd(void)
{
    long fd = sp_raw6(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | USER_MODE_ONLY, 0, 0, 0, 0, 0);
    if (fd < 0)
        return;
    sp_raw6(SYS_dup3, fd, SP_UFFD_FD, O_CLOEXEC, 0, 0, 0);
    sp_raw6(SYS_close, fd, 0, 0, 0, 0, 0);
}
