/*
 * Saved forms of sandboxes: <data>/saved/<name>/, either whole or not there.
 *
 * A form is what a suspend, a snapshot or a fork leaves on the disk: manifest.json and the files
 * and subvolumes of its tier. `name` is a sandbox id (it is suspended) or a snapshot id. A form is
 * immutable. Nothing in it refers to another form or to a template's own files by path: what is
 * shared is shared by hard links, reflinks and btrfs snapshots, so the file system counts the
 * references and a form can be removed at any time (docs/saved-format.md).
 *
 * Forms are made in <data>/tmp and renamed, so that a crash leaves nothing that could be taken for
 * one; sp_saved_clean() removes what such a crash left.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/ids.h"
#include "disk/volume.h"

#define SP_SAVED_FORMAT 1
#define SP_SAVED_MANIFEST "manifest.json"

#define SP_SAVED_MANIFEST_MAX 65536u /* bytes; a longer one is not read */
#define SP_SAVED_FILES_MAX 16u

struct sp_saved_file {
    char *name; /* owned; a plain file name */
    int64_t size_bytes;
    int64_t data_bytes;       /* in blocks of 4096 that are not holes */
    char sha256[SP_HASH_HEX]; /* as sp_memory_copy() counts it; "" : not hashed */
};

/* Owned members; clear with sp_saved_manifest_clear(). */
struct sp_saved_manifest {
    int64_t format;
    char *sandbox_id; /* whose form it is */
    char *tier, *template_digest;
    bool memory;   /* false: the disk only */
    bool durable;  /* false: valid only within this boot of the host */
    char *boot_id; /* of the host; to commit: NULL is the present one */
    double cpus;
    int64_t memory_mb, disk_mb, pids;
    unsigned slot;         /* of the sandbox; uids in the form may be of this slot */
    int64_t created_at_ms; /* to commit: 0 is now */
    GArray *files;         /* of struct sp_saved_file; NULL: none */
    json_t *machine;       /* the tier's own object; may be NULL */
};

/* --- the manifest as bytes (saved_manifest.c) */
/* Its first bytes are the SHA-256 of all that follows, so any flipped bit is found. Free with
 * g_free(); *ret_len may be NULL. */
char *sp_saved_manifest_text(const struct sp_saved_manifest *manifest, size_t *ret_len);
/* Strict. SP_ERROR_FAILED_PRECONDITION: damaged, or of another format. *ret is only set on success.
 */
bool sp_saved_manifest_parse(const char *text, size_t len, struct sp_saved_manifest *ret,
                             GError **error);
/* Adds a file; copies the name. sha256 may be NULL. */
void sp_saved_manifest_add(struct sp_saved_manifest *manifest, const char *name, int64_t size_bytes,
                           int64_t data_bytes, const char *sha256);

/* Absolute path; free with g_free(). Does not look whether it exists. */
char *sp_saved_path(const struct sp_volume *volume, const char *name);
/* Whether the form is there (whole). */
bool sp_saved_exists(const struct sp_volume *volume, const char *name);
/* Whether it is certain that there is none: not a disk that cannot be read. */
bool sp_saved_is_gone(const struct sp_volume *volume, const char *name);

/* --- making one */
struct sp_saved_staging;
/* An empty directory to make the form in. reserve_bytes must be free on the volume beside a margin,
 * else SP_ERROR_UNAVAILABLE, saying how much is needed and how much there is. That the space is
 * there is tried by allocating it; it is given back before this returns. SP_ERROR_CONFLICT: one of
 * this name is being made. */
struct sp_saved_staging *sp_saved_stage(const struct sp_volume *volume, const char *name,
                                        int64_t reserve_bytes, GError **error);
const char *sp_saved_staging_dir(const struct sp_saved_staging *staging); /* borrowed, absolute */
/* Writes the manifest and makes the form appear. manifest->durable: everything is synced to the
 * disk first (every file, the directory, its parent). Replaces nothing: SP_ERROR_CONFLICT when the
 * name is taken. */
bool sp_saved_commit(struct sp_saved_staging *staging, const struct sp_saved_manifest *manifest,
                     GError **error);
/* Removes what was not committed. NULL is fine. */
void sp_saved_staging_free(struct sp_saved_staging *staging);

/* --- using one */
/* SP_ERROR_NOT_FOUND: it is not there; SP_ERROR_FAILED_PRECONDITION: another format or damaged, or
 * made in another boot and not durable. */
bool sp_saved_load(const char *dir, struct sp_saved_manifest *ret, GError **error);
const struct sp_saved_file *sp_saved_manifest_file(const struct sp_saved_manifest *manifest,
                                                   const char *name); /* NULL: none */
void sp_saved_manifest_clear(struct sp_saved_manifest *manifest);
/* The same form under another name and sandbox id (NULL: as it was), sharing all data: files by
 * hard links, subvolumes by read-only snapshots. durable as above. An older form called `to` is
 * replaced in one step, so there is always a whole one. */
bool sp_saved_copy(const struct sp_volume *volume, const char *from, const char *to,
                   const char *sandbox_id, bool durable, GError **error);
/* Makes it disappear at once (rename), then removes it. True when there was none. */
bool sp_saved_remove(const struct sp_volume *volume, const char *name, GError **error);
/* Names of all forms; free with g_strfreev(). */
char **sp_saved_list(const struct sp_volume *volume);
/* Removes what crashes left half made or half removed; for a worker's start. */
void sp_saved_clean(const struct sp_volume *volume);
