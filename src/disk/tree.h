/* Removal of directory trees whose content is not to be trusted. */
#pragma once

#include <stdbool.h>

/* Removes what `name` in the directory dir_fd is, with all below; true (0) when it was not there.
 * Follows no symbolic link and crosses no mount point (EXDEV or EBUSY then). Returns 0, or -1 with
 * errno of the first thing that could not be removed. */
int sp_tree_remove_at(int dir_fd, const char *name);
/* The same for a path whose parent directories are trusted. */
int sp_tree_remove(const char *path);
