/*
 * Builds a template by hand, for tests and for trying a recipe:
 *   template-tool STATE_DIR RECIPE.json [SECONDS]
 * prints progress on stderr and the digest on stdout.
 */
#include <stdio.h>
#include <string.h>

#include "base/time.h"
#include "disk/template.h"
#include "disk/template_build.h"
#include "disk/volume.h"

static void print_line(void *user, const char *line)
{
    const int64_t *start_ms = user;
    fprintf(stderr, "%7.2f %s\n", (double)(sp_time_monotonic_ms() - *start_ms) / 1000, line);
}

static bool build(const char *state, const char *recipe_path, int64_t timeout_ms, GError **error)
{
    struct sp_template_recipe recipe;
    if (!sp_template_recipe_load(recipe_path, &recipe, error)) {
        sp_template_recipe_clear(&recipe);
        return false;
    }
    struct sp_volume *volume = sp_volume_open(state, 0, error);
    int64_t start_ms = sp_time_monotonic_ms();
    g_autofree char *digest = NULL;
    bool done = volume != NULL && sp_template_build(volume, &recipe, timeout_ms, NULL, print_line,
                                                    &start_ms, &digest, error);
    if (done) {
        print_line(&start_ms, "done");
        printf("%s\n", digest);
    }
    sp_volume_close(volume);
    sp_template_recipe_clear(&recipe);
    return done;
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: template-tool STATE_DIR RECIPE.json [SECONDS]\n");
        return 2;
    }
    int64_t seconds = argc == 4 ? g_ascii_strtoll(argv[3], NULL, 10) : 1800;
    g_autoptr(GError) error = NULL;
    if (!build(argv[1], argv[2], seconds * 1000, &error)) {
        fprintf(stderr, "%s\n", error->message);
        return 1;
    }
    return 0;
}
