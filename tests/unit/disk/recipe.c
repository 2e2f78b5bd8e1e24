#include "disk/recipe.h"

#include <string.h>

#include "base/error.h"
#include "base/json.h"

static bool decode(const char *text, struct sp_template_recipe *recipe, GError **error)
{
    g_autoptr(json_t) root = sp_json_parse(text, strlen(text), error);
    g_assert_no_error(*error);
    return sp_template_recipe_decode(root, recipe, error);
}

static void test_defaults(void)
{
    struct sp_template_recipe recipe;
    g_autoptr(GError) error = NULL;
    g_assert_true(decode("{\"name\":\"tiny\"}", &recipe, &error));
    g_assert_no_error(error);
    g_assert_cmpstr(recipe.name, ==, "tiny");
    g_assert_cmpstr(recipe.user, ==, "user");
    g_assert_cmpstr(recipe.workdir, ==, "/workspace");
    g_assert_null(recipe.ready[0]);
    g_assert_null(recipe.packages);
    sp_template_recipe_clear(&recipe);
}

static void test_accepts(void)
{
    struct sp_template_recipe recipe;
    g_autoptr(GError) error = NULL;
    g_assert_true(decode("{\"name\":\"a-1.b_c\",\"packages\":[\"g++\",\"libc6=2.36-9+deb12u1\","
                         "\"git=1:2.39~rc1\"],\"workdir\":\"/srv/my work\",\"user\":\"root\","
                         "\"setup\":[\"echo 'a' > /etc/a\"]}",
                         &recipe, &error));
    g_assert_no_error(error);
    g_assert_cmpuint(g_strv_length(recipe.packages), ==, 3);
    sp_template_recipe_clear(&recipe);
}

static void test_refusals_name_the_field(void)
{
    static const struct {
        const char *text, *field;
    } rows[] = {
        {"{}", "/name"},
        {"{\"name\":\"A\"}", "/name"},
        {"{\"name\":\"-a\"}", "/name"},
        {"{\"name\":\"a/b\"}", "/name"},
        {"{\"name\":\"a\",\"packages\":[\"ok\",\"--purge\"]}", "/packages/1"},
        {"{\"name\":\"a\",\"packages\":[\"git-\"]}", "/packages/0"},
        {"{\"name\":\"a\",\"packages\":[\"a,b\"]}", "/packages/0"},
        {"{\"name\":\"a\",\"packages\":[\"?installed\"]}", "/packages/0"},
        {"{\"name\":\"a\",\"packages\":[\"./x.deb\"]}", "/packages/0"},
        {"{\"name\":\"a\",\"packages\":[\"git=\"]}", "/packages/0"},
        {"{\"name\":\"a\",\"packages\":[\"git=1 2\"]}", "/packages/0"},
        {"{\"name\":\"a\",\"packages\":[\"\"]}", "/packages/0"},
        {"{\"name\":\"a\",\"user\":\"nobody\"}", "/user"},
        {"{\"name\":\"a\",\"workdir\":\"work\"}", "/workdir"},
        {"{\"name\":\"a\",\"workdir\":\"/a/../..\"}", "/workdir"},
        {"{\"name\":\"a\",\"workdir\":\"/a//b\"}", "/workdir"},
        {"{\"name\":\"a\",\"setup\":[\"true\",\"a\\nb\"]}", "/setup/1"},
        {"{\"name\":\"a\",\"ready\":[]}", "/ready"},
        {"{\"name\":\"a\",\"mirror\":\"x\"}", "/mirror"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct sp_template_recipe recipe;
        g_autoptr(GError) error = NULL;
        g_assert_false(decode(rows[i].text, &recipe, &error));
        g_assert_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST);
        g_assert_cmpstr(sp_error_field(error), ==, rows[i].field);
        sp_template_recipe_clear(&recipe);
    }
}

static void test_size_of_env(void)
{
    g_autofree char *value = g_strnfill(8192 - 4 - 2, 'x'); /* "A=" */
    for (int more = 0; more < 2; more++) {
        g_autofree char *text =
            g_strdup_printf("{\"name\":\"a\",\"env\":{\"A\":\"%s%s\"}}", value, more ? "x" : "");
        struct sp_template_recipe recipe;
        g_autoptr(GError) error = NULL;
        g_assert_cmpint(decode(text, &recipe, &error), ==, !more);
        g_assert_cmpstr(error ? sp_error_field(error) : NULL, ==, more ? "/env" : NULL);
        sp_template_recipe_clear(&recipe);
    }
}

/* The recipes in the tree can be read. */
static void test_seed(void)
{
    g_autofree char *path =
        g_build_filename(g_getenv("SP_SOURCE_ROOT"), "templates", "seed", "recipe.json", NULL);
    struct sp_template_recipe recipe;
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_template_recipe_load(path, &recipe, &error));
    g_assert_no_error(error);
    g_assert_cmpstr(recipe.name, ==, "seed");
    g_assert_true(g_strv_contains((const char *const *)recipe.packages, "python3"));
    sp_template_recipe_clear(&recipe);
    g_assert_false(sp_template_recipe_load("/nonexistent", &recipe, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/recipe/defaults", test_defaults);
    g_test_add_func("/recipe/accepts", test_accepts);
    g_test_add_func("/recipe/refusals_name_the_field", test_refusals_name_the_field);
    g_test_add_func("/recipe/size_of_env", test_size_of_env);
    g_test_add_func("/recipe/seed", test_seed);
    return g_test_run();
}
