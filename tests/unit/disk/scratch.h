/* A state directory for one test, and the proof that nothing of it stays. */
#pragma once

#include <glib.h>
#include <stdbool.h>

#include "disk/volume.h"

/* True when the test may mount; otherwise marks it as skipped. */
bool scratch_may_mount(void);

/* A new empty state directory; free with scratch_end(). */
char *scratch_begin(void);
/* Unmounts the volume, asserts that no mount and no loop device of the directory is left, and
 * removes it. */
void scratch_end(char *state);

/* Opens a volume of 512 MiB (btrfs), or a plain one because no mkfs.btrfs works. */
struct sp_volume *scratch_volume(const char *state);
struct sp_volume *scratch_plain_volume(const char *state);

unsigned scratch_mounts(const char *state); /* mounts at or below the directory */
unsigned scratch_loops(const char *state);  /* loop devices bound to files in it */
/* The same, after giving the kernel up to 5 s to clear a device whose last user has gone. */
unsigned scratch_loops_settled(const char *state);

/* Writes len bytes of data into a file until an error; returns what was written and sets *ret_errno
 * (0: all). */
gint64 scratch_fill(const char *path, gint64 len, int *ret_errno);
