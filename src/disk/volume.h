/*
 * The data directory of a worker: <state>/data, where templates, boot images and the writable layers of
 * sandboxes live.
 *
 * Best on btrfs (reflink copies, subvolumes with quota). When the state directory is on another file
 * system, sp_volume_open() makes <state>/data.btrfs (a sparse file) and mounts it through a loop device;
 * where that is impossible (not root, no btrfs) the plain directory serves: copies are then sparse
 * copies and writable layers of containers are sized tmpfs mounts.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

struct sp_volume;

enum sp_volume_kind {
    SP_VOLUME_BTRFS, /* reflink + subvolumes + qgroups */
    SP_VOLUME_PLAIN, /* neither is promised; reflink may still work (XFS) */
};

/* Opens (makes and mounts if need be) the volume of a state directory. Idempotent: a mount that is
 * there is used as it is. max_bytes: size of the sparse file when it has to be made; 0 = 80 % of the
 * free space, at most 256 GiB. Seconds at first use. */
struct sp_volume *sp_volume_open(const char *state_dir, uint64_t max_bytes, GError **error);
void sp_volume_close(struct sp_volume *volume);

/* Unmounts the volume and detaches its loop device; only when no sandbox uses it. Not an error when
 * it is not mounted. */
bool sp_volume_unmount(const char *state_dir, GError **error);

const char *sp_volume_dir(const struct sp_volume *volume); /* absolute path of the data directory */
enum sp_volume_kind sp_volume_kind(const struct sp_volume *volume);
/* Free bytes that a new layer could use. */
uint64_t sp_volume_free_bytes(const struct sp_volume *volume);
