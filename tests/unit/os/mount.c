/* Detached mounts; needs root, says so when it cannot run. */
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "os/mount.h"

static void test_detached(void)
{
    g_autoptr(GError) error = NULL;
    const char *const options[] = {"source", "t", "size", "64k", "mode", "0700", NULL};
    int fd = sp_mount_new("tmpfs", options, SP_ATTR_NOSUID, &error);
    g_assert_no_error(error);
    g_assert_cmpint(mkdirat(fd, "a", 0755), ==, 0);
    g_autofree char *info = NULL;
    g_autofree char *dir = g_dir_make_tmp("space-mount-XXXXXX", NULL);
    g_assert_false(sp_mount_is_point(dir));
    g_assert_true(sp_mount_detach(dir, &error)); /* nothing there */
    g_assert_true(sp_mount_attach(fd, dir, &error));
    g_assert_no_error(error);
    g_assert_true(sp_mount_is_point(dir));
    int copy = sp_mount_clone(AT_FDCWD, dir, false, &error);
    g_assert_true(sp_mount_set(copy, SP_ATTR_RDONLY, -1, &error));
    g_assert_no_error(error);
    g_assert_cmpint(mkdirat(copy, "b", 0755), ==, -1);
    g_assert_cmpint(errno, ==, EROFS);
    g_assert_cmpint(mkdirat(fd, "b", 0755), ==, 0);
    g_assert_true(sp_mount_detach(dir, &error));
    g_assert_false(sp_mount_is_point(dir));
    close(copy);
    close(fd);
    g_assert_cmpint(rmdir(dir), ==, 0);
}

/* What is mounted on a shared mount, as most hosts have them, does not come into a copy. */
static void test_copy_is_private(void)
{
    g_autoptr(GError) error = NULL;
    const char *const options[] = {"source", "t", "size", "64k", NULL};
    g_autofree char *one = g_dir_make_tmp("space-mount-XXXXXX", NULL);
    g_autofree char *two = g_dir_make_tmp("space-mount-XXXXXX", NULL);
    g_autofree char *below_one = g_build_filename(one, "below", NULL);
    g_autofree char *below_two = g_build_filename(two, "below", NULL);
    int fd = sp_mount_new("tmpfs", options, 0, &error);
    g_assert_true(sp_mount_attach(fd, one, &error));
    g_assert_cmpint(mkdir(below_one, 0755), ==, 0);
    g_assert_cmpint(mount(NULL, one, NULL, MS_SHARED, NULL), ==, 0);
    int copy = sp_mount_clone(AT_FDCWD, one, false, &error);
    g_assert_true(sp_mount_attach(copy, two, &error));
    int more = sp_mount_new("tmpfs", options, 0, &error);
    g_assert_true(sp_mount_attach(more, below_two, &error));
    g_assert_no_error(error);
    g_assert_true(sp_mount_is_point(below_two));
    g_assert_false(sp_mount_is_point(below_one));
    close(more);
    close(copy);
    close(fd);
    g_assert_true(sp_mount_detach(two, &error));
    g_assert_true(sp_mount_detach(one, &error));
    g_assert_cmpint(rmdir(two), ==, 0);
    g_assert_cmpint(rmdir(one), ==, 0);
}

static void test_errors_explain(void)
{
    g_autoptr(GError) error = NULL;
    g_assert_cmpint(sp_mount_new("nosuchfs", NULL, 0, &error), ==, -1);
    g_assert_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED);
    g_clear_error(&error);
    g_assert_false(sp_mount_supported("nosuchfs"));
    g_assert_true(sp_mount_supported("tmpfs"));
    const char *const options[] = {"size", "many", NULL};
    g_assert_cmpint(sp_mount_new("tmpfs", options, 0, &error), ==, -1);
    g_assert_nonnull(strstr(error->message, "mount tmpfs: size: "));
    g_assert_nonnull(strstr(error->message, "Bad value for 'size'")); /* the kernel's words */
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    if (geteuid() != 0) {
        g_print("1..0 # SKIP NOT TESTED: mounts need root\n");
        return 0;
    }
    g_test_add_func("/mount/detached", test_detached);
    g_test_add_func("/mount/copy_is_private", test_copy_is_private);
    g_test_add_func("/mount/errors_explain", test_errors_explain);
    return g_test_run();
}
