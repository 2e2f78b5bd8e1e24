/* Empty ext4 file systems to clone writable disks from: one sparse file a size, made once. */
#pragma once

#include <glib.h>
#include <stdint.h>

/* Path of <dir>/blank/<disk_mb>.ext4, which is made if need be (mke2fs, below a second). The file's
 * size is the limit that the guest sees. Free with g_free(); NULL on failure. */
char *sp_blank_disk(const char *dir, int64_t disk_mb, GError **error);
