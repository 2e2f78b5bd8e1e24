#include "cli/recipe.h"

#include <string.h>

#include "base/error.h"

#define RECIPE_MAX_BYTES (1024 * 1024)

static json_t *load_file(const char *path, GError **error)
{
    g_autofree char *text = NULL;
    gsize len = 0;
    g_autoptr(GError) cause = NULL;
    if (!g_file_get_contents(path, &text, &len, &cause)) {
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "%s", cause->message);
        return NULL;
    }
    if (len > RECIPE_MAX_BYTES) {
        g_set_error(error, SP_ERROR, SP_ERROR_PAYLOAD_TOO_LARGE, "%s is longer than 1 MiB", path);
        return NULL;
    }
    json_t *recipe = sp_json_parse(text, len, error);
    if (!recipe)
        g_prefix_error(error, "%s: ", path);
    return recipe;
}

/* The path of a shipped recipe, or NULL. */
static char *find_shipped(const char *name)
{
    static const char *const places[] = {"../templates", "../share/space/templates", NULL};
    g_autofree char *self = g_file_read_link("/proc/self/exe", NULL);
    g_autofree char *folder = self ? g_path_get_dirname(self) : NULL;
    for (size_t i = 0; folder && places[i]; i++) {
        g_autofree char *path = g_build_filename(folder, places[i], name, "recipe.json", NULL);
        if (g_file_test(path, G_FILE_TEST_IS_REGULAR))
            return g_steal_pointer(&path);
    }
    return NULL;
}

json_t *sp_recipe_load(const char *what, char **ret_name, GError **error)
{
    g_autofree char *path = NULL;
    if (g_file_test(what, G_FILE_TEST_IS_DIR))
        path = g_build_filename(what, "recipe.json", NULL);
    else if (!strchr(what, '/') && *what != '.')
        path = find_shipped(what);
    if (!path) {
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND,
                    "\"%s\" is neither a directory with a recipe.json nor a recipe that came with "
                    "SPACE",
                    what);
        return NULL;
    }
    g_autoptr(json_t) recipe = load_file(path, error);
    if (!recipe)
        return NULL;
    const char *name = json_string_value(json_object_get(recipe, "name"));
    if (!name) {
        g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "%s: the recipe has no \"name\"",
                    path);
        return NULL;
    }
    *ret_name = g_strdup(name);
    return g_steal_pointer(&recipe);
}
