/*
 * Recipes of templates (docs/templates.md, "Recipes"): what a root file system is built from.
 *
 * {"name":"seed","packages":["python3"],"env":{"LANG":"C.UTF-8"},"user":"user","workdir":"/workspace",
 *  "ready":["/bin/true"],"setup":["…one line of shell…"]}
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>

/* All owned. Packages and setup may be NULL (none). */
struct sp_template_recipe {
    char *name;      /* required: a-z, 0-9, '-', '_', '.' */
    char **packages; /* of Debian, "name" or "name=version", besides the minimal system */
    char **env;      /* "KEY=value", 8 KiB in all */
    char *user;      /* default account of processes: "user" (the default) or "root" */
    char *workdir;   /* default "/workspace"; made for that account */
    char **ready;    /* default none: the tier's own proof (driver.h, ready_command) */
    char **setup;    /* lines run by one `sh -eu` as root in the new root, with network; trusted:
                      * whoever may build a template is root on the build machine as well */
};

/* Decodes and checks a recipe (at most 1 MiB); defaults are filled in. SP_ERROR_INVALID_REQUEST
 * with the field otherwise. Clear it with sp_template_recipe_clear(), also after a failure. */
bool sp_template_recipe_decode(json_t *object, struct sp_template_recipe *ret_recipe,
                               GError **error);
/* The same from a file. SP_ERROR_NOT_FOUND: there is none. */
bool sp_template_recipe_load(const char *path, struct sp_template_recipe *ret_recipe,
                             GError **error);
void sp_template_recipe_clear(struct sp_template_recipe *recipe);
