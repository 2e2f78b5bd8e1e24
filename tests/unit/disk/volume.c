#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "disk/volume.h"
#include "scratch.h"

static void test_open_is_idempotent(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    struct sp_volume *first = scratch_volume(state);
    struct sp_volume *second = scratch_volume(state);
    g_assert_cmpuint(scratch_mounts(state), ==, 1);
    g_assert_cmpuint(scratch_loops(state), ==, 1);
    g_assert_cmpuint(sp_volume_free_bytes(first), >, 300 << 20);
    g_assert_cmpuint(sp_volume_free_bytes(first), <=, 512 << 20);
    g_assert_cmpstr(sp_volume_dir(first), ==, sp_volume_dir(second));
    static const char *const folders[] = {"templates", "layers", "tmp"};
    for (size_t i = 0; i < G_N_ELEMENTS(folders); i++) {
        g_autofree char *folder = g_build_filename(sp_volume_dir(first), folders[i], NULL);
        g_assert_true(g_file_test(folder, G_FILE_TEST_IS_DIR));
    }
    sp_volume_close(first);
    sp_volume_close(second);
    scratch_end(state);
}

static void test_content_survives_unmount(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    g_autoptr(GError) error = NULL;
    struct sp_volume *volume = scratch_volume(state);
    g_autofree char *file = g_build_filename(sp_volume_dir(volume), "templates", "note", NULL);
    g_assert_true(g_file_set_contents(file, "kept", -1, NULL));
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    g_assert_false(sp_volume_unmount(state, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    g_clear_error(&error);
    close(fd);
    sp_volume_close(volume);
    g_assert_true(sp_volume_unmount(state, &error));
    g_assert_no_error(error);
    g_assert_cmpuint(scratch_loops(state), ==, 0); /* at once: unmount waits for it */
    g_assert_true(sp_volume_unmount(state, &error));
    g_assert_false(g_file_test(file, G_FILE_TEST_EXISTS));
    volume = scratch_volume(state);
    g_assert_true(g_file_test(file, G_FILE_TEST_EXISTS));
    sp_volume_close(volume);
    scratch_end(state);
}

/* Somebody's private mount namespace (a service manager, a test) keeps a copy of our mount: the
 * unmount is no failure, and the next open uses the same loop device. Two over one file would be
 * two caches of the same blocks. */
static void test_copy_in_another_namespace(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    g_autoptr(GError) error = NULL;
    struct sp_volume *volume = scratch_volume(state);
    int hold[2];
    g_assert_cmpint(pipe(hold), ==, 0);
    pid_t holder = fork();
    if (holder == 0) {
        char byte = 0;
        bool ready = unshare(CLONE_NEWNS) == 0 &&
                     mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                     write(hold[1], &byte, 1) == 1;
        while (ready)
            pause();
        _exit(1);
    }
    close(hold[1]);
    char byte;
    g_assert_cmpint(read(hold[0], &byte, 1), ==, 1);
    sp_volume_close(volume);
    g_assert_true(sp_volume_unmount(state, &error));
    g_assert_no_error(error);
    g_assert_cmpuint(scratch_mounts(state), ==, 0);
    g_assert_cmpuint(scratch_loops(state), ==, 1);

    volume = scratch_volume(state);
    g_assert_cmpuint(scratch_loops(state), ==, 1);
    g_assert_cmpint(kill(holder, SIGKILL), ==, 0);
    g_assert_cmpint(waitpid(holder, NULL, 0), ==, holder);
    close(hold[0]);
    sp_volume_close(volume);
    scratch_end(state);
}

static void *open_in_thread(void *state)
{
    return scratch_volume(state);
}

static void test_racing_opens_make_one(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    GThread *threads[6];
    for (size_t i = 0; i < G_N_ELEMENTS(threads); i++) {
        threads[i] = g_thread_new("open", open_in_thread, state);
    }
    for (size_t i = 0; i < G_N_ELEMENTS(threads); i++) {
        sp_volume_close(g_thread_join(threads[i]));
    }
    g_assert_cmpuint(scratch_mounts(state), ==, 1);
    g_assert_cmpuint(scratch_loops(state), ==, 1);
    scratch_end(state);
}

static void test_broken_backing_is_an_error(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    g_autofree char *backing = g_build_filename(state, "data.btrfs", NULL);
    g_assert_true(g_file_set_contents(backing, "not a file system", -1, NULL));
    g_assert_cmpint(truncate(backing, 300 << 20), ==, 0);
    g_autoptr(GError) error = NULL;
    g_assert_null(sp_volume_open(state, 0, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INTERNAL);
    g_assert_nonnull(strstr(error->message, "data.btrfs"));
    g_assert_cmpuint(scratch_mounts(state), ==, 0);
    g_assert_cmpuint(scratch_loops_settled(state), ==, 0);
    scratch_end(state);
}

/* What a crash in the middle of making the file leaves does not disturb. */
static void test_half_made_backing_is_replaced(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    g_autofree char *fresh = g_build_filename(state, "data.btrfs.new", NULL);
    g_assert_true(g_file_set_contents(fresh, "half", -1, NULL));
    sp_volume_close(scratch_volume(state));
    g_assert_false(g_file_test(fresh, G_FILE_TEST_EXISTS));
    scratch_end(state);
}

static void test_plain_when_it_cannot_be_made(void)
{
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_plain_volume(state);
    g_assert_nonnull(sp_volume_reason(volume));
    if (geteuid() == 0) {
        g_assert_nonnull(strstr(sp_volume_reason(volume), "no such luck"));
    }
    g_assert_cmpuint(scratch_mounts(state), ==, 0);
    g_assert_cmpuint(scratch_loops(state), ==, 0);
    g_assert_cmpuint(sp_volume_free_bytes(volume), >, 0);
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_volume_reclaim(volume, 0, &error));
    g_autofree char *backing = g_build_filename(state, "data.btrfs.new", NULL);
    g_assert_false(g_file_test(backing, G_FILE_TEST_EXISTS));

    /* With something in it, it stays plain although btrfs would work now. */
    g_autofree char *file = g_build_filename(sp_volume_dir(volume), "templates", "note", NULL);
    g_assert_true(g_file_set_contents(file, "kept", -1, NULL));
    sp_volume_close(volume);
    volume = sp_volume_open(state, 512 << 20, &error);
    g_assert_no_error(error);
    g_assert_cmpint(sp_volume_kind(volume), ==, SP_VOLUME_PLAIN);
    g_assert_true(g_file_test(file, G_FILE_TEST_EXISTS));
    sp_volume_close(volume);

    /* Empty, it becomes btrfs. */
    if (geteuid() == 0) {
        g_assert_cmpint(unlink(file), ==, 0);
        sp_volume_close(scratch_volume(state));
    }
    scratch_end(state);
}

static void test_on_tmpfs(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    g_assert_cmpint(mount("scratch", state, "tmpfs", 0, "size=600m"), ==, 0);
    struct sp_volume *plain = scratch_plain_volume(state);
    sp_volume_close(plain);
    struct sp_volume *volume = scratch_volume(state); /* a loop device on tmpfs works too */
    sp_volume_close(volume);
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_volume_unmount(state, &error));
    g_assert_cmpint(umount2(state, 0), ==, 0);
    scratch_end(state);
}

static void test_refuses(void)
{
    g_autoptr(GError) error = NULL;
    g_assert_null(sp_volume_open("relative", 0, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST);
    g_clear_error(&error);
    g_assert_null(sp_volume_open("/nonexistent", 1 << 20, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST);
    g_clear_error(&error);
    g_assert_null(sp_volume_open("/nonexistent/state", 0, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INTERNAL);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/volume/open_is_idempotent", test_open_is_idempotent);
    g_test_add_func("/volume/content_survives_unmount", test_content_survives_unmount);
    g_test_add_func("/volume/copy_in_another_namespace", test_copy_in_another_namespace);
    g_test_add_func("/volume/racing_opens_make_one", test_racing_opens_make_one);
    g_test_add_func("/volume/broken_backing_is_an_error", test_broken_backing_is_an_error);
    g_test_add_func("/volume/half_made_backing_is_replaced", test_half_made_backing_is_replaced);
    g_test_add_func("/volume/plain_when_it_cannot_be_made", test_plain_when_it_cannot_be_made);
    g_test_add_func("/volume/on_tmpfs", test_on_tmpfs);
    g_test_add_func("/volume/refuses", test_refuses);
    return g_test_run();
}
