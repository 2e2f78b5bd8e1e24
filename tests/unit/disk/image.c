#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "disk/image.h"
#include "disk/program.h"
#include "disk/template.h"
#include "scratch.h"

#define DIGEST "sha256:00000000000000000000000000000000000000000000000000000000000000aa"
#define OTHER "sha256:00000000000000000000000000000000000000000000000000000000000000bb"

/* A template directory whose image holds one file. */
static char *make_template(const struct sp_volume *volume, const char *state, const char *digest)
{
    g_autofree char *root = g_build_filename(state, "root", NULL);
    g_autofree char *file = g_build_filename(root, "hello", NULL);
    char *dir = sp_template_dir(volume, digest);
    g_autofree char *image = g_build_filename(dir, "image.erofs", NULL);
    g_mkdir_with_parents(root, 0755);
    g_mkdir_with_parents(dir, 0755);
    g_assert_true(g_file_set_contents(file, "world", -1, NULL));
    const char *const argv[] = {"mkfs.erofs", "--quiet", image, root, NULL};
    const struct sp_program mkfs = {.argv = argv, .timeout_ms = 20000};
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_program_run(&mkfs, &error));
    g_assert_no_error(error);
    return dir;
}

static void test_mounts_once(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_volume(state);
    g_autofree char *dir = make_template(volume, state, DIGEST);
    struct sp_images *images = sp_images_new(state);
    g_autoptr(GError) error = NULL;
    g_autofree char *first = sp_images_mount(images, dir, &error);
    g_assert_no_error(error);
    g_autofree char *second = sp_images_mount(images, dir, &error);
    g_assert_cmpstr(first, ==, second);
    sp_images_free(images);
    images = sp_images_new(state); /* a restarted worker */
    g_autofree char *third = sp_images_mount(images, dir, &error);
    g_assert_cmpstr(first, ==, third);
    g_assert_cmpuint(scratch_mounts(state), ==, 2);
    g_autofree char *file = g_build_filename(first, "hello", NULL);
    g_autofree char *text = NULL;
    g_assert_true(g_file_get_contents(file, &text, NULL, NULL));
    g_assert_cmpstr(text, ==, "world");
    int fd = open(file, O_WRONLY);
    g_assert_cmpint(fd, <, 0);
    g_assert_cmpint(errno, ==, EROFS);

    /* In use: the volume cannot go, and the image cannot while a file of it is open. */
    fd = open(file, O_RDONLY | O_CLOEXEC);
    g_assert_false(sp_images_unmount(images, DIGEST, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    g_clear_error(&error);
    close(fd);
    g_assert_true(sp_images_unmount(images, OTHER, &error));
    g_assert_true(sp_images_unmount(images, DIGEST, &error));
    g_assert_no_error(error);
    g_assert_true(sp_images_unmount(images, DIGEST, &error));
    g_assert_cmpuint(scratch_mounts(state), ==, 1);
    g_assert_cmpuint(scratch_loops(state), ==, 1);
    sp_images_free(images);
    sp_volume_close(volume);
    scratch_end(state);
}

struct racer {
    struct sp_images *images;
    const char *dir;
};

static void *race(void *data)
{
    const struct racer *racer = data;
    g_autoptr(GError) error = NULL;
    char *path = sp_images_mount(racer->images, racer->dir, &error);
    g_assert_no_error(error);
    return path;
}

static void test_racing_mounts_make_one(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_plain_volume(state);
    g_autofree char *dir = make_template(volume, state, DIGEST);
    g_autofree char *other = make_template(volume, state, OTHER);
    struct sp_images *images = sp_images_new(state);
    struct racer racers[] = {{images, dir}, {images, other}};
    GThread *threads[8];
    for (size_t i = 0; i < G_N_ELEMENTS(threads); i++) {
        threads[i] = g_thread_new("mount", race, &racers[i % 2]);
    }
    for (size_t i = 0; i < G_N_ELEMENTS(threads); i++) {
        g_free(g_thread_join(threads[i]));
    }
    g_assert_cmpuint(scratch_mounts(state), ==, 2);
    g_assert_cmpuint(scratch_loops(state), ==, 2);
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_images_unmount(images, NULL, &error));
    g_assert_no_error(error);
    g_assert_cmpuint(scratch_mounts(state), ==, 0);
    sp_images_free(images);
    sp_volume_close(volume);
    scratch_end(state);
}

static void test_failures_leave_nothing(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_plain_volume(state);
    struct sp_images *images = sp_images_new(state);
    g_autoptr(GError) error = NULL;
    g_autofree char *dir = sp_template_dir(volume, DIGEST);
    g_assert_null(sp_images_mount(images, dir, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
    g_clear_error(&error);
    g_autofree char *image = g_build_filename(dir, "image.erofs", NULL);
    g_mkdir_with_parents(dir, 0755);
    g_assert_true(g_file_set_contents(image, "no image", -1, NULL));
    g_assert_cmpint(truncate(image, 1 << 20), ==, 0);
    g_assert_null(sp_images_mount(images, dir, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INTERNAL);
    g_clear_error(&error);
    g_assert_null(sp_images_mount(images, "/etc", &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST);
    g_clear_error(&error);
    g_assert_false(sp_images_unmount(images, "sha256:../..", &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST);
    g_assert_cmpuint(scratch_mounts(state), ==, 0);
    g_assert_cmpuint(scratch_loops_settled(state), ==, 0);
    sp_images_free(images);
    sp_volume_close(volume);
    scratch_end(state);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/image/mounts_once", test_mounts_once);
    g_test_add_func("/image/racing_mounts_make_one", test_racing_mounts_make_one);
    g_test_add_func("/image/failures_leave_nothing", test_failures_leave_nothing);
    return g_test_run();
}
