/*
 * Writable layers: the upper directory of a container's overlay root, with a hard size limit.
 *
 * <data>/layers/<id>: a btrfs subvolume with a qgroup limit (SP_VOLUME_BTRFS; full is EDQUOT), or a
 * mount point of a tmpfs with size= and nr_inodes= (SP_VOLUME_PLAIN; full is ENOSPC, and what is in
 * it counts as memory). The layer's root is for host root only; it holds `upper` (0755), owned by
 * the sandbox's root, and `work` (0700), owned by the host's root, who mounts the overlay.
 *
 * Ids: on btrfs a layer holds the ids of inside (root is 0, the host's root 65536), and the overlay
 * is made of an idmapped mount of it, so that a saved layer fits any slot (sp_layer_is_mapped). On
 * a tmpfs, which can be idmapped since Linux 6.3 only, it holds the host's ids of the slot; copies
 * are shifted. What is saved always holds the ids of inside. Nobody but host root can reach such
 * files: the layer's root is 0700, and so is the folder of saved forms.
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
/* The same with the content of a saved layer (sp_layer_save): a snapshot, or on a tmpfs a copy,
 * which must fit into disk_mb. */
bool sp_layer_create_from(const struct sp_volume *volume, const char *id, int64_t disk_mb,
                          uint32_t uid, const char *saved_path, GError **error);
/* Saves a layer, whose sandbox stands still, as `name` in the directory: a read-only snapshot, or a
 * copy with owners, modes, times, extended attributes, hard links, holes and devices (overlayfs
 * marks removed files by one). SP_ERROR_UNAVAILABLE: no space. *ret_bytes: what it refers to. On
 * failure the caller removes what there is. */
bool sp_layer_save(const struct sp_volume *volume, const char *id, uint32_t uid, int dir_fd,
                   const char *name, int64_t *ret_bytes, GError **error);
/* Writes back what is still in memory of it; may take long. */
bool sp_layer_sync(const struct sp_volume *volume, const char *id, GError **error);
/* Whether layers of the volume hold the ids of inside: they are mounted through an idmap. */
bool sp_layer_is_mapped(const struct sp_volume *volume);
/* Absolute path of a layer; free with g_free(). Does not look whether it exists. */
char *sp_layer_path(const struct sp_volume *volume, const char *id);
/* Removes a layer with all it holds; true when there was none. Never follows a link out of it. No
 * process may use it any more. Space comes back in the background: sp_volume_reclaim(). */
bool sp_layer_destroy(const struct sp_volume *volume, const char *id, GError **error);
/* Changes the limit of a live layer. Less than what is in it is allowed: writes fail then. (On a
 * tmpfs that is refused with SP_ERROR_FAILED_PRECONDITION.) */
bool sp_layer_set_limit(const struct sp_volume *volume, const char *id, int64_t disk_mb,
                        GError **error);
