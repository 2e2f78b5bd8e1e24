#include <glib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/log_file.h"
#include "disk/tree.h"

static int64_t size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : -1;
}

static void test_rotation_and_tail(void)
{
    g_autofree char *dir = g_dir_make_tmp("space-log-XXXXXX", NULL);
    struct sp_state_dir state = {.path = dir, .lock_fd = -1};
    g_autofree char *log = sp_state_dir_file(&state, "log");
    g_autofree char *file = sp_state_dir_file(&state, "log/d.log");
    g_autofree char *older = sp_state_dir_file(&state, "log/d.log.1");
    g_assert_cmpint(mkdir(log, 0700), ==, 0);
    g_assert_null(sp_log_file_tail(&state, "d"));
    int fd = sp_log_file_open(&state, "d", NULL);
    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpint(write(fd, "first\n", 6), ==, 6);
    sp_log_file_rotate(&state, "d");
    g_assert_cmpint(size_of(older), ==, -1); /* not full yet */

    g_assert_cmpint(ftruncate(fd, SP_LOG_FILE_MAX_BYTES), ==, 0);
    sp_log_file_rotate(&state, "d");
    g_assert_cmpint(size_of(older), ==, SP_LOG_FILE_MAX_BYTES);
    g_assert_cmpint(size_of(file), ==, 0);
    /* The writer's own descriptor goes on at the new end. */
    g_assert_cmpint(write(fd, "next\n", 5), ==, 5);
    g_assert_cmpint(size_of(file), ==, 5);
    g_autofree char *tail = sp_log_file_tail(&state, "d");
    g_assert_cmpstr(tail, ==, "next\n");
    close(fd);
    g_assert_cmpint(sp_tree_remove(dir), ==, 0);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/log-file/rotation-and-tail", test_rotation_and_tail);
    return g_test_run();
}
