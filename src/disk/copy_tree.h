/*
 * Copies of directory trees whose content is not to be trusted and does not change meanwhile: what
 * a file system can hold goes along (owners, modes, times, extended attributes, hard links, holes,
 * devices, FIFOs, sockets). No symbolic link is followed.
 */
#pragma once

#include <stdint.h>

/* Ids from…from+count-1 become to…; others, of which there are none in a sound tree, stay. */
struct sp_id_shift {
    uint32_t from, to, count;
};

/* Copies what `from_name` in the directory is to the new `to_name`. Ids that are in access control
 * lists (acl(5)) and of file capabilities (capabilities(7), "Namespaced file capabilities") are
 * shifted as well. *ret_bytes (may be NULL): data copied. 0, or -1 with errno: ELOOP when the tree
 * is deeper than 256 directories; what was copied until then stays. */
int sp_copy_tree(int from_dir, const char *from_name, int to_dir, const char *to_name,
                 const struct sp_id_shift *shift, int64_t *ret_bytes);
