#include "disk/template.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "scratch.h"

#define DIGEST "sha256:00000000000000000000000000000000000000000000000000000000000000aa"

static char *env[] = {(char *)"A=1", (char *)"B=x=y", NULL};
static char *ready[] = {(char *)"/bin/true", NULL};
static char *packages[] = {(char *)"bash=5.2", NULL};

static const struct sp_template_config sample = {
    .format = 1,
    .name = (char *)"seed",
    .user = (char *)"user",
    .workdir = (char *)"/workspace",
    .env = env,
    .ready = ready,
    .packages = packages,
};

/* A directory with a configuration and the first bytes of an image. */
static void make_template(const char *dir)
{
    g_autofree char *image = g_build_filename(dir, "image.erofs", NULL);
    g_autoptr(GError) error = NULL;
    char content[2048] = {0};
    memcpy(content + 1024, "\xe2\xe1\xf5\xe0", 4);
    g_mkdir_with_parents(dir, 0755);
    g_assert_true(g_file_set_contents(image, content, sizeof(content), &error));
    g_assert_true(sp_template_config_save(dir, &sample, &error));
    g_assert_no_error(error);
}

static void test_digest_names(void)
{
    static const char *const bad[] = {
        "",
        "sha256:",
        "sha256:aa",
        DIGEST "0",
        "md5:00",
        "sha256:../../../../../../../../../../../../../etc/passwd/xxxxxxxxx",
        "sha256:00000000000000000000000000000000000000000000000000000000000000AA"};
    g_assert_cmpstr(sp_template_digest_hex(DIGEST), ==, DIGEST + 7);
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_assert_null(sp_template_digest_hex(bad[i]));
    }
}

static void test_config_round_trip(void)
{
    char *state = scratch_begin();
    g_autoptr(GError) error = NULL;
    struct sp_template_config config;
    g_assert_true(sp_template_config_save(state, &sample, &error));
    g_assert_true(sp_template_config_load(state, &config, &error));
    g_assert_no_error(error);
    g_assert_cmpint(config.format, ==, 1);
    g_assert_cmpstr(config.name, ==, "seed");
    g_assert_cmpstr(config.user, ==, "user");
    g_assert_cmpstr(config.workdir, ==, "/workspace");
    g_assert_cmpstr(config.env[1], ==, "B=x=y");
    g_assert_cmpstr(config.ready[0], ==, "/bin/true");
    g_assert_cmpstr(config.packages[0], ==, "bash=5.2");
    sp_template_config_clear(&config);
    g_assert_null(config.env);
    g_autofree char *path = g_build_filename(state, "config.json", NULL);
    static const char *const bad[] = {
        "", "{}", "[]",
        "{\"format\":2,\"name\":\"x\",\"user\":\"u\",\"workdir\":\"/\","
        "\"ready\":[\"/bin/true\"]}",
        "{\"format\":1,\"name\":\"x\",\"user\":\"u\",\"workdir\":\"/\","
        "\"ready\":[\"/bin/true\"],\"more\":1}"};
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_assert_true(g_file_set_contents(path, bad[i], -1, NULL));
        g_assert_false(sp_template_config_load(state, &config, &error));
        g_assert_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST);
        sp_template_config_clear(&config);
        g_clear_error(&error);
    }
    scratch_end(state);
}

static void test_store(void)
{
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_plain_volume(state);
    g_autoptr(GError) error = NULL;
    g_autofree char *fake = sp_template_dir(volume, DIGEST);
    g_assert_false(sp_template_validate(volume, DIGEST, false, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
    g_clear_error(&error);
    make_template(fake);
    g_assert_true(sp_template_validate(volume, DIGEST, false, &error));
    g_assert_no_error(error);
    g_assert_false(sp_template_validate(volume, DIGEST, true, &error)); /* not its true digest */
    g_assert_error(error, SP_ERROR, SP_ERROR_INTERNAL);
    g_clear_error(&error);
    g_autofree char *digest = sp_template_digest(fake, &error);
    g_autofree char *dir = sp_template_dir(volume, digest);
    make_template(dir);
    g_assert_true(sp_template_validate(volume, digest, true, &error));
    g_assert_no_error(error);
    g_assert_cmpint(sp_template_image_bytes(dir), ==, 2048);

    g_autofree char *stray = g_build_filename(sp_volume_dir(volume), "templates", "stray", NULL);
    g_mkdir_with_parents(stray, 0755);
    g_auto(GStrv) list = sp_template_list(volume, &error);
    g_assert_cmpuint(g_strv_length(list), ==, 2);
    g_assert_true(g_strv_contains((const char *const *)list, DIGEST));
    g_assert_true(g_strv_contains((const char *const *)list, digest));

    g_autofree char *vm = g_build_filename(dir, "vm", "key", NULL);
    g_mkdir_with_parents(vm, 0755);
    g_assert_true(sp_template_remove(volume, digest, &error));
    g_assert_no_error(error);
    g_assert_false(g_file_test(dir, G_FILE_TEST_EXISTS));
    g_assert_true(sp_template_remove(volume, digest, &error));
    g_assert_false(sp_template_remove(volume, "sha256:..", &error));
    g_clear_error(&error);
    g_autofree char *image = g_build_filename(fake, "image.erofs", NULL);
    g_assert_true(g_file_set_contents(image, "short", -1, NULL));
    g_assert_false(sp_template_validate(volume, DIGEST, false, &error));
    sp_volume_close(volume);
    scratch_end(state);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/template/digest_names", test_digest_names);
    g_test_add_func("/template/config_round_trip", test_config_round_trip);
    g_test_add_func("/template/store", test_store);
    return g_test_run();
}
