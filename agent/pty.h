/* A terminal for a session, from the sandbox's own /dev/pts. */
#pragma once

#include "agent.h"

/* Opens a pair: the master (non-blocking) and the slave, owned by uid, with the given size. */
bool pty_open(uid_t uid, uint16_t rows, uint16_t cols, int *ret_master, int *ret_slave);
bool pty_resize(int master, uint16_t rows, uint16_t cols);
