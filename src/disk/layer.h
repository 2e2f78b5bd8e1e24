/*
 * Writable layers: the upper directory of a container's overlay root, with a hard size limit.
 *
 * <data>/layers/<id>: a btrfs subvolume with a qgroup limit (SP_VOLUME_BTRFS; full is EDQUOT), or a
 * mount point of a tmpfs with size= and nr_inodes= (SP_VOLUME_PLAIN; full is ENOSPC, and what is in
 * it counts as memory). The layer's root is for host root only; it holds `upper` (0755) and `work`
 * (0700), owned by the sandbox's root uid.
 *
 * On the path of every create and delete: system calls only, no helper programs, well under 1 ms.
 * Ids are sandbox ids; anything but letters, digits, '_' and '-' is refused.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "disk/volume.h"

/* Makes the layer. SP_ERROR_CONFLICT: it is there. On failure nothing is left. uid: host uid (and
 * gid) that is root inside. */
bool sp_layer_create(const struct sp_volume *volume, const char *id, int64_t disk_mb, uint32_t uid,
                     GError **error);
/* Absolute path of a layer; free with g_free(). Does not look whether it exists. */
char *sp_layer_path(const struct sp_volume *volume, const char *id);
/* Removes a layer with all it holds; true when there was none. Never follows a link out of it. No
 * process may use it any more. Space comes back in the background: sp_volume_reclaim(). */
bool sp_layer_destroy(const struct sp_volume *volume, const char *id, GError **error);
/* Changes the limit of a live layer. Less than what is in it is allowed: writes fail then. (On a
 * tmpfs that is refused with SP_ERROR_FAILED_PRECONDITION.) */
bool sp_layer_set_limit(const struct sp_volume *volume, const char *id, int64_t disk_mb,
                        GError **error);
