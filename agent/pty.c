#include "pty.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef TIOCGPTPEER
#define TIOCGPTPEER 0x5441 /* ioctl_tty(2), since Linux 4.13 */
#endif

bool pty_resize(int master, uint16_t rows, uint16_t cols)
{
    struct winsize size = {.ws_row = rows, .ws_col = cols};
    return ioctl(master, TIOCSWINSZ, &size) == 0;
}

bool pty_open(uid_t uid, uint16_t rows, uint16_t cols, int *ret_master, int *ret_slave)
{
    int unlocked = 0;
    int slave = -1;
    int master = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (master < 0)
        return false;
    /* The slave comes from the master itself: a path in /dev could lead elsewhere. */
    if (ioctl(master, TIOCSPTLCK, &unlocked) == 0)
        slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave < 0 || !pty_resize(master, rows, cols) || fchown(slave, uid, (gid_t)-1) < 0 ||
        fchmod(slave, 0620) < 0) {
        if (slave >= 0)
            close(slave);
        close(master);
        return false;
    }
    *ret_master = master;
    *ret_slave = slave;
    return true;
}
