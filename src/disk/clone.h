/* Copies of files that share their blocks where the file system can (FICLONE, ioctl_ficlone(2)). */
#pragma once

#include <glib.h>
#include <stdbool.h>

/* Makes a new file `to` (mode, must not exist) with the content of `from`: a reflink, else a sparse
 * copy (SEEK_DATA, copy_file_range). Durable only after the caller's fsync. ret_reflinked may be
 * NULL. */
bool sp_file_clone(const char *from, const char *to, mode_t mode, bool *ret_reflinked,
                   GError **error);

/* The same into an open, writable file that holds nothing but holes, of the same size (which someone may
 * have open). */
bool sp_file_clone_into(int from, int to, GError **error);
