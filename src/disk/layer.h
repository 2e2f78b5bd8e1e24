/*
 * Writable layers: the upper directory of a container's overlay root, with a hard size limit.
 *
 * <data>/layers/<id>: a btrfs subvolume with a qgroup limit (SP_VOLUME_BTRFS), or a mount point of a
 * tmpfs with size= and nr_inodes= (SP_VOLUME_PLAIN). Holds `upper` and `work`, owned by the sandbox's
 * root uid.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "disk/volume.h"

/* Makes the layer. EEXIST is an error. On failure nothing is left. uid: host uid that is root inside. */
bool sp_layer_create(struct sp_volume *volume, const char *id, int64_t disk_mb, uint32_t uid,
                     GError **error);
/* Absolute path of a layer; free with g_free(). Does not look whether it exists. */
char *sp_layer_path(const struct sp_volume *volume, const char *id);
/* Removes a layer with all it holds; true when there was none. Never follows a link out of it. */
bool sp_layer_destroy(struct sp_volume *volume, const char *id, GError **error);
/* Changes the limit of a live layer. */
bool sp_layer_set_limit(struct sp_volume *volume, const char *id, int64_t disk_mb, GError **error);
