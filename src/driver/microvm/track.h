/*
 * Which pages a guest writes, from outside of it: userfaultfd(2) with asynchronous write protection
 * (UFFD_FEATURE_WP_ASYNC, Linux 6.7).
 *
 * Only the process that owns the memory can open the userfaultfd: a small library in QEMU
 * (uffd_helper/) does that when it is asked through the socket SP_VMM_TRACK, and hands it over. No
 * fault is ever delivered, so nothing here can make the guest wait.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>

#include "driver/microvm/guest_ram.h"

struct sp_tracker;

/* Begins to track. SP_ERROR_UNSUPPORTED: the kernel or the VM cannot. At most 1 s. */
struct sp_tracker *sp_tracker_open(const char *run_dir, const struct sp_guest_ram *ram,
                                   GError **error);
/* Ends it. NULL is fine. */
void sp_tracker_free(struct sp_tracker *tracker);
/* Whether this kernel can do it at all: tried in this process. */
bool sp_tracker_possible(void);
