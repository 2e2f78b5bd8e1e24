#include "os/file_lock.h"

#include <glib/gstdio.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"

/* Two openings of one file keep each other out, within a process too; a close lets go. */
static void test_excludes(void)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *dir = g_dir_make_tmp("space-lock-XXXXXX", NULL);
    g_autofree char *path = g_build_filename(dir, "lock", NULL);
    int first = sp_file_lock(path, 0, &error);
    g_assert_no_error(error);
    int64_t began = sp_time_monotonic_ms();
    g_assert_cmpint(sp_file_lock(path, 60, &error), ==, -1);
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_assert_cmpint(sp_time_monotonic_ms() - began, >=, 60);
    g_clear_error(&error);
    close(first);
    int second = sp_file_lock(path, 0, &error);
    g_assert_no_error(error);
    close(second);
    g_unlink(path);
    g_rmdir(dir);
}

/* A lock file is never a link to somewhere else. */
static void test_refuses_links(void)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *dir = g_dir_make_tmp("space-lock-XXXXXX", NULL);
    g_autofree char *path = g_build_filename(dir, "lock", NULL);
    g_assert_cmpint(symlink("elsewhere", path), ==, 0);
    g_assert_cmpint(sp_file_lock(path, 0, &error), ==, -1);
    g_assert_error(error, SP_ERROR, SP_ERROR_INTERNAL);
    g_unlink(path);
    g_rmdir(dir);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/file_lock/excludes", test_excludes);
    g_test_add_func("/file_lock/refuses_links", test_refuses_links);
    return g_test_run();
}
