#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "disk/clone.h"
#include "scratch.h"

/* 1 MiB of data at 8 MiB and at 20 MiB in a file of 32 MiB and 5 bytes. */
static void make_sparse(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    g_assert_cmpint(fd, >=, 0);
    g_autofree char *block = g_malloc(1 << 20);
    memset(block, 'a', 1 << 20);
    g_assert_cmpint(pwrite(fd, block, 1 << 20, 8 << 20), ==, 1 << 20);
    g_assert_cmpint(pwrite(fd, block, 1 << 20, 20 << 20), ==, 1 << 20);
    g_assert_cmpint(ftruncate(fd, (32 << 20) + 5), ==, 0);
    g_assert_cmpint(fsync(fd), ==, 0);
    close(fd);
}

static void check_equal(const char *a, const char *b)
{
    g_autofree char *left = NULL, *right = NULL;
    gsize left_len, right_len;
    g_assert_true(g_file_get_contents(a, &left, &left_len, NULL));
    g_assert_true(g_file_get_contents(b, &right, &right_len, NULL));
    g_assert_cmpmem(left, left_len, right, right_len);
}

static void check_clone(const char *from_dir, const char *to_dir, bool expect_reflink)
{
    g_autofree char *from = g_build_filename(from_dir, "from", NULL);
    g_autofree char *to = g_build_filename(to_dir, "to", NULL);
    g_autoptr(GError) error = NULL;
    bool reflinked = !expect_reflink;
    make_sparse(from);
    mode_t mask = umask(077);
    g_assert_true(sp_file_clone(from, to, 0644, &reflinked, &error));
    umask(mask);
    g_assert_no_error(error);
    g_assert_cmpint(reflinked, ==, expect_reflink);
    check_equal(from, to);
    struct stat st;
    g_assert_cmpint(stat(to, &st), ==, 0);
    g_assert_cmpuint(st.st_mode & 07777, ==, 0644);
    g_assert_cmpint(st.st_blocks * 512, <, 4 << 20);
    g_assert_false(sp_file_clone(from, to, 0644, NULL, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_CONFLICT);
    check_equal(from, to);
    g_assert_cmpint(unlink(from), ==, 0);
    g_assert_cmpint(unlink(to), ==, 0);
}

static void test_reflink_on_btrfs(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_volume(state);
    check_clone(sp_volume_dir(volume), sp_volume_dir(volume), true);
    check_clone(state, sp_volume_dir(volume), false); /* across file systems */
    sp_volume_close(volume);
    scratch_end(state);
}

static void test_copy_on_tmpfs(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    g_assert_cmpint(mount("scratch", state, "tmpfs", 0, "size=64m"), ==, 0);
    check_clone(state, state, false);
    g_assert_cmpint(umount2(state, 0), ==, 0);
    scratch_end(state);
}

static void test_failure_leaves_no_file(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    g_autofree char *small = g_build_filename(state, "small", NULL);
    g_autofree char *from = g_build_filename(state, "from", NULL);
    g_autofree char *to = g_build_filename(small, "to", NULL);
    g_mkdir_with_parents(small, 0755);
    g_assert_cmpint(mount("scratch", small, "tmpfs", 0, "size=1m"), ==, 0);
    make_sparse(from);
    g_autoptr(GError) error = NULL;
    g_assert_false(sp_file_clone(from, to, 0600, NULL, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_assert_false(g_file_test(to, G_FILE_TEST_EXISTS));
    g_clear_error(&error);
    g_assert_false(sp_file_clone(small, to, 0600, NULL, &error)); /* a directory */
    g_assert_nonnull(error);
    g_clear_error(&error);
    g_assert_false(sp_file_clone("/nonexistent", to, 0600, NULL, &error));
    g_assert_nonnull(error);
    g_assert_cmpint(umount2(small, 0), ==, 0);
    scratch_end(state);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/clone/reflink_on_btrfs", test_reflink_on_btrfs);
    g_test_add_func("/clone/copy_on_tmpfs", test_copy_on_tmpfs);
    g_test_add_func("/clone/failure_leaves_no_file", test_failure_leaves_no_file);
    return g_test_run();
}
