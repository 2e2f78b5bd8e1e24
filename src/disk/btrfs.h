/*
 * The few ioctls of btrfs that SPACE uses (linux/btrfs.h, btrfs(5)), without libbtrfs and without
 * the btrfs program. Functions return 0, or -1 with errno, unless they say otherwise.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Whether an open file or directory is on btrfs. */
bool sp_btrfs_is(int fd);

/* Turns quota groups on for the whole file system and keeps their numbers exact; nothing changes
 * when they are on. */
int sp_btrfs_quota_enable(int fd);
/* Whether quota groups are on. */
bool sp_btrfs_quota_enabled(int fd);

/* Makes an empty subvolume below the directory, whose quota group may hold limit_bytes (data and
 * metadata): one call, so that there is never a subvolume without its limit. EEXIST. */
int sp_btrfs_subvolume_create(int dir_fd, const char *name, uint64_t limit_bytes);
/* Makes a snapshot `name` in dir_fd of the subvolume whose root source_fd is (BTRFS_IOC_SNAP_CREATE_V2):
 * what is in it at this moment, also what is not written back yet. Its quota group has no limit.
 * EEXIST; EINVAL: not a subvolume. */
int sp_btrfs_snapshot(int dir_fd, const char *name, int source_fd, bool read_only);
/* Changes the limit of the subvolume that fd is on. */
int sp_btrfs_subvolume_limit(int fd, uint64_t limit_bytes);
/* The id of a subvolume, which is that of its quota group too; 0: not a subvolume. */
uint64_t sp_btrfs_subvolume_id(int dir_fd, const char *name);
/* Bytes that a subvolume refers to, shared ones as well, as its quota group counts them; 0 where that
 * cannot be told. */
int64_t sp_btrfs_subvolume_bytes(int dir_fd, const char *name);
/* Deletes a subvolume and, where the kernel lets it go at once, its quota group. Its name is gone
 * at once; the kernel's cleaner frees the blocks after the next commit. ENOENT; ENOTDIR or EINVAL:
 * not a subvolume. */
int sp_btrfs_subvolume_destroy(int dir_fd, const char *name);

/* Removes the quota group of a deleted subvolume; 0 also when there is none. EBUSY while it counts
 * something, which some kernels (6.1.y) say until the cleaner is done; then they keep it for ever
 * unless this is called again, where later ones remove it themselves. */
int sp_btrfs_qgroup_remove(int fd, uint64_t id);
/* The same for all quota groups of the file system whose subvolume is gone, whoever made it. */
int sp_btrfs_qgroups_sweep(int fd);

/* Commits, and waits until the cleaner has freed all deleted subvolumes. ETIMEDOUT. */
int sp_btrfs_reclaim(int fd, int64_t timeout_ms);
