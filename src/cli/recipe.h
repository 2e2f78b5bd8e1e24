/* Recipes of templates: where `space template build` finds them. */
#pragma once

#include <glib.h>
#include <jansson.h>

#include "base/json.h"

/* Reads <what>/recipe.json when `what` is a directory; else the recipe of that name among those
 * that came with SPACE (templates/ beside the build folder of a source tree,
 * <prefix>/share/space/templates). ret_name gets the recipe's name (free with g_free()). Files of
 * at most 1 MiB. */
json_t *sp_recipe_load(const char *what, char **ret_name, GError **error);
