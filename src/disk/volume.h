/*
 * The data directory of a worker: <state>/data, where templates, boot images and the writable
 * layers of sandboxes live.
 *
 * Best on btrfs (reflink copies, subvolumes with quota). When the state directory is on another
 * file system (or on a btrfs without quota groups, which is then not ours to change),
 * sp_volume_open() makes <state>/data.btrfs (a sparse file) and mounts it through a loop device;
 * where that is impossible (not root, no btrfs) the plain directory serves: copies are then sparse
 * copies and writable layers of containers are sized tmpfs mounts. A volume that was once made one
 * way stays so: a data.btrfs that cannot be mounted is an error, and a plain directory that holds
 * something is never mounted over.
 *
 * Folders in it, made by sp_volume_open(): templates/, layers/, saved/, tmp/ (things half made).
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

/* Opens (makes and mounts if need be) the volume of a state directory: an absolute path that
 * exists. Idempotent: a mount that is there is used as it is. Concurrent calls, also of other
 * processes, wait for each other (at most 120 s). max_bytes: size of the sparse file when it has to
 * be made, at least 256 MiB; 0 = 80 % of the free space, at most 256 GiB. Seconds at first use. */
struct sp_volume *sp_volume_open(const char *state_dir, uint64_t max_bytes, GError **error);
void sp_volume_close(struct sp_volume *volume); /* leaves the mount; NULL is allowed */

/* Unmounts the volume and waits until its loop device is free; SP_ERROR_FAILED_PRECONDITION while
 * something in it is open or mounted. True when it is not mounted, or not by us. */
bool sp_volume_unmount(const char *state_dir, GError **error);

const char *sp_volume_dir(const struct sp_volume *volume); /* absolute path of the data directory */
enum sp_volume_kind sp_volume_kind(const struct sp_volume *volume);
/* Why the volume is plain, for `space doctor`; NULL when it is btrfs. Also NULL when it was found
 * plain. Borrowed. */
const char *sp_volume_reason(const struct sp_volume *volume);
/* Free bytes that a new layer or disk could use: of the volume, and of the file system that its
 * sparse file is on. 0 when that cannot be told. */
uint64_t sp_volume_free_bytes(const struct sp_volume *volume);

/* Waits until the space of destroyed layers is free again. btrfs frees it in the background, within
 * its commit interval (30 s); call this before refusing work for lack of space, or to measure. At
 * most timeout_ms, then SP_ERROR_UNAVAILABLE. */
bool sp_volume_reclaim(const struct sp_volume *volume, int64_t timeout_ms, GError **error);

/* Sees to it that the quota group of a subvolume that was just deleted goes
 * (sp_btrfs_qgroup_remove): now, or when a later one is deleted. For disk/layer.c. Thread-safe. */
void sp_volume_drop_group(const struct sp_volume *volume, uint64_t id);
