/*
 * Templates on disk (docs/templates.md): <data>/templates/<64 hex digits>/ with image.erofs and
 * config.json. A directory of that name is whole: it came by rename. Nothing in it is changed
 * later, but for vm/ (boot images of the microVM tier, not part of the digest).
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "disk/volume.h"

/* config.json, decoded; all owned. */
struct sp_template_config {
    int64_t format;  /* 1 */
    char *name;      /* of the recipe */
    char *user;      /* the account that runs processes unless a request names another */
    char *workdir;   /* absolute */
    char **env;      /* "KEY=value" */
    char **ready;    /* argv that exits 0 once the sandbox can be used; may be empty */
    char **packages; /* "name=version", really installed, sorted */
};

/* Whether text is 64 lower-case hex digits. */
bool sp_template_hex_valid(const char *text);
/* The hex digits in "sha256:…" (points into digest); NULL when it is not such a digest. */
const char *sp_template_digest_hex(const char *digest);

/* Absolute path of the directory of a template, there or not; NULL: not a digest. Free with
 * g_free(). */
char *sp_template_dir(const struct sp_volume *volume, const char *digest);
/* Digests of all templates, sorted; free with g_strfreev(). NULL on failure. */
char **sp_template_list(const struct sp_volume *volume, GError **error);
/* Removes a template with its boot images; true when there was none. The image may still be
 * mounted: then its blocks are freed with the mount. Not for templates that a sandbox uses. */
bool sp_template_remove(const struct sp_volume *volume, const char *digest, GError **error);
/* Checks the files of a template: there, an erofs image, a configuration that parses. With full
 * also that the digest is right (reads the whole image: seconds). SP_ERROR_NOT_FOUND: no such
 * template. */
bool sp_template_validate(const struct sp_volume *volume, const char *digest, bool full,
                          GError **error);
/* Size of the image; -1 when there is none. */
int64_t sp_template_image_bytes(const char *template_dir);

/* "sha256:…" over image.erofs and config.json of a directory; free with g_free(). Reads all of it.
 */
char *sp_template_digest(const char *template_dir, GError **error);

/* Reads config.json of a template directory (at most 1 MiB). Clear the result with
 * sp_template_config_clear(), also after a failure. */
bool sp_template_config_load(const char *template_dir, struct sp_template_config *ret_config,
                             GError **error);
/* Writes config.json into a directory: the same bytes for the same values. */
bool sp_template_config_save(const char *template_dir, const struct sp_template_config *config,
                             GError **error);
void sp_template_config_clear(struct sp_template_config *config);
