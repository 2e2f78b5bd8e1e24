/*
 * Builds a template from a recipe: mmdebstrap with this machine's own apt sources, then one erofs
 * image.
 *
 * Runs as root, takes a minute or so, starts helper programs (mmdebstrap, mkfs.erofs, chroot) in a
 * mount and pid namespace of their own that end with the call, whatever way it ends. The same
 * packages give the same digest.
 */
#pragma once

#include <gio/gio.h>
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "disk/program.h"
#include "disk/recipe.h"
#include "disk/volume.h"

/* Builds it and puts it in its place; a template of that digest that is there already is kept.
 * Builds on one volume run one after the other; waiting counts. progress gets lines for a human,
 * from this thread. ret_digest: "sha256:…", free with g_free(). On failure (also by timeout_ms or
 * cancellable: SP_ERROR_UNAVAILABLE) nothing is left. SP_ERROR_UNSUPPORTED: a program is missing or
 * this is not a Debian machine. */
bool sp_template_build(const struct sp_volume *volume, const struct sp_template_recipe *recipe,
                       int64_t timeout_ms, GCancellable *cancellable, sp_progress_fn progress,
                       void *user, char **ret_digest, GError **error);

/* Removes what crashed builds and removals have left in the volume; call it when the worker starts.
 * Does nothing while a build runs. */
bool sp_template_clean(const struct sp_volume *volume, GError **error);
