#include "disk/recipe.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/json.h"
#include "wire/agent_msg.h"

#define RECIPE_MAX (1 << 20)
/* All variables, each with 4 bytes of overhead: the sandbox's own (48 KiB) go to the agent in the
 * same frame. */
#define ENV_BYTES_MAX (8 * 1024)

static const struct sp_json_field table[] = {
    {"name", SP_JSON_STRING, offsetof(struct sp_template_recipe, name), 1, 63, .required = true},
    {"packages", SP_JSON_STRING_LIST, offsetof(struct sp_template_recipe, packages), 0, 1000},
    {"env", SP_JSON_STRING_MAP, offsetof(struct sp_template_recipe, env), 0, 256},
    {"user", SP_JSON_STRING, offsetof(struct sp_template_recipe, user), 1, 32},
    {"workdir", SP_JSON_STRING, offsetof(struct sp_template_recipe, workdir), 1, 1024},
    {"ready", SP_JSON_STRING_LIST, offsetof(struct sp_template_recipe, ready), 1, 64},
    {"setup", SP_JSON_STRING_LIST, offsetof(struct sp_template_recipe, setup), 0, 1000},
    {NULL},
};

static bool made_of(const char *text, const char *more)
{
    for (const char *p = text; *p != '\0'; p++) {
        if (!g_ascii_islower(*p) && !g_ascii_isdigit(*p) && strchr(more, *p) == NULL) {
            return false;
        }
    }
    return g_ascii_isalnum(text[0]);
}

/* "name" or "name=version" by Debian's policy (§5.6.1, §5.6.12): nothing that apt takes for an
 * option, a pattern or a file. */
static bool package_valid(const char *text)
{
    g_auto(GStrv) parts = g_strsplit(text, "=", 2);
    /* A '-' at the end asks apt to remove the package; "g++" is a name. */
    if (parts[0] == NULL || strlen(parts[0]) < 2 || !made_of(parts[0], "+-.") ||
        g_str_has_suffix(parts[0], "-")) {
        return false;
    }
    if (parts[1] == NULL) {
        return true;
    }
    g_autofree char *version = g_ascii_strdown(parts[1], -1);
    return made_of(version, ".+-:~");
}

/* Absolute, without "." and "..", so that it stays below the new root. */
static bool workdir_valid(const char *path)
{
    g_auto(GStrv) parts = g_strsplit(path, "/", -1);
    for (size_t i = 1; parts[i] != NULL; i++) {
        if (parts[i][0] == '.' || parts[i][0] == '\0') {
            return false;
        }
    }
    return path[0] == '/' && strpbrk(path, "\n\r") == NULL;
}

static bool env_valid(char *const *env)
{
    size_t total = 0;
    for (; env != NULL && *env != NULL; env++) {
        total += strlen(*env) + SP_MSG_ITEM_OVERHEAD;
    }
    return total <= ENV_BYTES_MAX;
}

static bool check(const struct sp_template_recipe *recipe, GError **error)
{
    if (!made_of(recipe->name, "-_.")) {
        sp_error_set_field(error, "/name", "must be lower-case letters, digits, '-', '_' and '.'");
        return false;
    }
    for (size_t i = 0; recipe->packages != NULL && recipe->packages[i] != NULL; i++) {
        if (!package_valid(recipe->packages[i])) {
            g_autofree char *field = g_strdup_printf("/packages/%zu", i);
            sp_error_set_field(error, field, "is not the name of a Debian package");
            return false;
        }
    }
    if (!env_valid(recipe->env)) {
        sp_error_set_field(error, "/env", "all variables together exceed 8 KiB");
        return false;
    }
    if (strcmp(recipe->user, "user") != 0 && strcmp(recipe->user, "root") != 0) {
        sp_error_set_field(error, "/user", "must be \"user\" or \"root\"");
        return false;
    }
    if (!workdir_valid(recipe->workdir)) {
        sp_error_set_field(error, "/workdir", "must be an absolute path without hidden parts");
        return false;
    }
    for (size_t i = 0; recipe->setup != NULL && recipe->setup[i] != NULL; i++) {
        if (strchr(recipe->setup[i], '\n') != NULL) {
            g_autofree char *field = g_strdup_printf("/setup/%zu", i);
            sp_error_set_field(error, field, "must be one line");
            return false;
        }
    }
    return true;
}

bool sp_template_recipe_decode(json_t *object, struct sp_template_recipe *ret_recipe,
                               GError **error)
{
    memset(ret_recipe, 0, sizeof(*ret_recipe));
    ret_recipe->user = g_strdup("user");
    ret_recipe->workdir = g_strdup("/workspace");
    ret_recipe->ready = g_new0(char *, 1);
    return sp_json_decode(object, table, ret_recipe, error) && check(ret_recipe, error);
}

bool sp_template_recipe_load(const char *path, struct sp_template_recipe *ret_recipe,
                             GError **error)
{
    memset(ret_recipe, 0, sizeof(*ret_recipe));
    struct stat st;
    if (stat(path, &st) < 0) {
        sp_error_set_errno(error, errno == ENOENT ? SP_ERROR_NOT_FOUND : SP_ERROR_INTERNAL, errno,
                           "%s", path);
        return false;
    }
    if (!S_ISREG(st.st_mode) || st.st_size > RECIPE_MAX) {
        g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "%s is not a file of at most 1 MiB",
                    path);
        return false;
    }
    g_autofree char *text = NULL;
    gsize len = 0;
    if (!g_file_get_contents(path, &text, &len, error)) {
        return false;
    }
    g_autoptr(json_t) root = sp_json_parse(text, len, error);
    if (root == NULL || !sp_template_recipe_decode(root, ret_recipe, error)) {
        g_prefix_error(error, "%s: ", path);
        return false;
    }
    return true;
}

void sp_template_recipe_clear(struct sp_template_recipe *recipe)
{
    sp_json_clear(table, recipe);
}
