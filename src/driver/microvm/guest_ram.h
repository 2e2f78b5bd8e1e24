/*
 * The RAM of a guest seen from outside: QEMU's private map of a sealed memfd, read and written with
 * process_vm_readv(2) and process_vm_writev(2).
 *
 * Pages that the guest has written are private copies; all others are still the memfd's. Which is
 * which says the kernel: PAGEMAP_SCAN (Linux 6.7; Documentation/admin-guide/mm/pagemap.rst), or
 * before that /proc/<pid>/pagemap (proc(5)). The VM must stand still while its pages are read, or
 * be about to be read again.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SP_PAGE_BYTES 4096

struct sp_guest_ram {
    pid_t pid;
    uint64_t address; /* in QEMU */
    int64_t size_bytes;
};

/* Pages [first, first + count). */
struct sp_page_run {
    uint64_t first, count;
};

/* Finds the map of this size. pidfd: of pid, so that a reused pid is told. */
bool sp_guest_ram_find(pid_t pid, int pidfd, int64_t size_bytes, struct sp_guest_ram *ret,
                       GError **error);

/* The private pages, in order, as struct sp_page_run appended to runs; also those that are swapped
 * out. */
bool sp_guest_ram_private(const struct sp_guest_ram *ram, GArray *runs, GError **error);
/* Of them those that were written since they were last protected, for a VM whose writes are tracked
 * (track.h); never protected: written. protect: in the same step they are protected again. */
bool sp_guest_ram_written(const struct sp_guest_ram *ram, bool protect, GArray *runs,
                          GError **error);
/* The private pages by the old interface; for tests and old kernels. */
bool sp_guest_ram_private_by_pagemap(const struct sp_guest_ram *ram, GArray *runs, GError **error);
/* Number of pages in runs. */
uint64_t sp_page_runs_total(const GArray *runs);

/* Runs that fit into buffer_bytes (whole pages; a long run may be cut) are read into the buffer one
 * after the other; *at and *skip (both 0 at first) say where to go on. The pieces are set in pieces
 * (array of struct sp_page_run), which is emptied first; none: the end. */
bool sp_guest_ram_read(const struct sp_guest_ram *ram, const GArray *runs, guint *at,
                       uint64_t *skip, void *buffer, size_t buffer_bytes, GArray *pieces,
                       GError **error);
/* Writes whole pages. */
bool sp_guest_ram_write(const struct sp_guest_ram *ram, uint64_t first_page, const void *bytes,
                        size_t len, GError **error);

/* Whether this process may do that with a process that it has started (some hosts forbid it:
 * ptrace(2), /proc/sys/kernel/yama/ptrace_scope). Tries it with pid. */
bool sp_guest_ram_may(pid_t pid, GError **error);
