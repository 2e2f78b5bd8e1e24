/*
 * Which pages a guest writes, from outside of it: userfaultfd(2) with asynchronous write protection
 * (UFFD_FEATURE_WP_ASYNC, Linux 6.7).
 *
 * Only the process that owns the memory can open the userfaultfd: a small library in QEMU (uffd/)
 * does that before main() and nothing more. It stays in QEMU's table of fds, so it is there for
 * every worker as long as the VM lives. Here a duplicate of it is taken (pidfd_getfd(2)) and the
 * RAM is registered with it (ioctl_userfaultfd(2): the calls work on the memory of the process that
 * opened it, whoever makes them). No fault is ever delivered in this mode, so nothing here can make
 * the guest wait.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>

#include "driver/microvm/guest_ram.h"

struct sp_tracker;

/* Whether this kernel can do it; tried in this process. SP_ERROR_UNSUPPORTED says what is missing.
 */
bool sp_tracker_possible(GError **error);

/* Begins to track: from now on sp_guest_ram_written() works. pidfd: of ram->pid.
 * SP_ERROR_UNSUPPORTED: this VM cannot be tracked (its userfaultfd is not there). Does not wait for
 * the VM. One tracker a VM at a time. */
struct sp_tracker *sp_tracker_open(int pidfd, const struct sp_guest_ram *ram, GError **error);
/* Ends it: no page is protected any more. What a killed worker has begun does no harm, and can be
 * begun again. NULL is fine. */
void sp_tracker_free(struct sp_tracker *tracker);
