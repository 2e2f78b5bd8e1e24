#include "restored.h"

#include "link.h"

#include <fcntl.h>
#include <glib.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Used by procs.c for PROCESSES only. */
struct sp_pack link_begin(struct link *l)
{
    (void)l;
    g_assert_not_reached();
}

void link_commit(struct link *l, uint8_t type, uint32_t tag, const struct sp_pack *payload)
{
    (void)l;
    (void)type;
    (void)tag;
    (void)payload;
    g_assert_not_reached();
}

static struct agent agent;

static void test_names(void)
{
    const char *const bad[] = {"",   "0",  "1", "01", "+5",  "-5",         " 5",
                               "5 ", "5x", ".", "..", "0x5", "1000000000", "99999999999999999999"};
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++)
        g_assert_cmpint(restored_parse_name(bad[i]), ==, 0);
    g_assert_cmpint(restored_parse_name("2"), ==, 2);
    g_assert_cmpint(restored_parse_name("4194304"), ==, 4194304);
    g_assert_cmpint(restored_parse_name("999999999"), ==, 999999999);
}

static void test_signals(void)
{
    const char *const bad[] = {"0", "65", "99", "100", "-1", "+1", " 1", "1 1", "0x1", "x", "1\n1"};
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++)
        g_assert_cmpint(restored_parse_signal(bad[i], strlen(bad[i])), ==, 0);
    g_assert_cmpint(restored_parse_signal("1\0", 2), ==, 0);
    g_assert_cmpint(restored_parse_signal(NULL, 0), ==, SIGUSR2);
    g_assert_cmpint(restored_parse_signal(" \n", 2), ==, SIGUSR2);
    g_assert_cmpint(restored_parse_signal("1", 1), ==, 1);
    g_assert_cmpint(restored_parse_signal("64\n", 3), ==, 64);
    g_assert_cmpint(restored_parse_signal("09", 2), ==, 9);
}

/* A directory as restored_init makes it. */
static char *open_directory(void)
{
    char *dir = g_dir_make_tmp("space-test-restored-XXXXXX", NULL);
    g_assert_nonnull(dir);
    g_autofree char *restored = g_build_filename(dir, "restored", NULL);
    g_assert_cmpint(g_mkdir(restored, 0700), ==, 0);
    agent.run_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    g_assert_cmpint(agent.run_fd, >=, 0);
    return dir;
}

static void close_directory(char *dir)
{
    g_autofree char *restored = g_build_filename(dir, "restored", NULL);
    close(agent.run_fd);
    g_assert_cmpint(g_rmdir(restored), ==, 0);
    g_assert_cmpint(g_rmdir(dir), ==, 0);
    g_free(dir);
}

static char *add(const char *dir, const char *name)
{
    char *path = g_build_filename(dir, "restored", name, NULL);
    g_assert_true(g_file_set_contents_full(path, "", 0, G_FILE_SET_CONTENTS_NONE, 0600, NULL));
    return path;
}

static struct timespec time_of(const char *path)
{
    struct stat st;
    g_assert_cmpint(lstat(path, &st), ==, 0);
    return st.st_mtim;
}

static void set_time(const char *path, time_t sec, long nsec)
{
    const struct timespec times[2] = {{sec, nsec}, {sec, nsec}};
    g_assert_cmpint(utimensat(AT_FDCWD, path, times, 0), ==, 0);
}

/* The clock jumps by an hour when a machine wakes: who registered before is not older for it. */
static void test_times_move(void)
{
    char *dir = open_directory();
    g_autofree char *number = g_strdup_printf("%d", (int)getpid());
    g_autofree char *one = add(dir, number), *other = add(dir, "name");
    g_autofree char *linked = g_build_filename(dir, "restored", "77", NULL);
    g_assert_cmpint(symlink(other, linked), ==, 0);
    set_time(one, 1000000, 100);
    set_time(other, 1000000, 100);
    restored_move_times(&agent, 3600 * G_GINT64_CONSTANT(1000000000) + 5);
    g_assert_cmpint(time_of(one).tv_sec, ==, 1003600);
    g_assert_cmpint(time_of(one).tv_nsec, ==, 105);
    restored_move_times(&agent, -3600 * G_GINT64_CONSTANT(1000000000) - 106);
    g_assert_cmpint(time_of(one).tv_sec, ==, 999999);
    g_assert_cmpint(time_of(one).tv_nsec, ==, 999999999);
    g_assert_cmpint(time_of(other).tv_sec, ==, 1000000); /* no registration, also not by the link */
    g_unlink(one);
    g_unlink(linked);
    g_unlink(other);
    close_directory(dir);
}

static pid_t start_child(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        for (;;)
            pause();
    }
    g_assert_cmpint(pid, >, 0);
    return pid;
}

static void end_child(pid_t pid)
{
    kill(pid, SIGKILL);
    g_assert_cmpint(waitpid(pid, NULL, 0), ==, pid);
}

static void test_prune(void)
{
    char *dir = open_directory();
    pid_t current = start_child(), gone = start_child();
    g_autofree char *current_name = g_strdup_printf("%d", (int)current);
    g_autofree char *gone_name = g_strdup_printf("%d", (int)gone);
    g_autofree char *current_file = add(dir, current_name), *gone_file = add(dir, gone_name);
    end_child(gone);
    restored_prune(&agent);
    g_assert_true(g_file_test(current_file, G_FILE_TEST_EXISTS));
    g_assert_false(g_file_test(gone_file, G_FILE_TEST_EXISTS));
    struct timespec now = time_of(current_file);
    set_time(current_file, now.tv_sec - 60, 0); /* before the process was there */
    restored_prune(&agent);
    g_assert_false(g_file_test(current_file, G_FILE_TEST_EXISTS));
    end_child(current);
    close_directory(dir);
}

static void test_signal(void)
{
    char *dir = open_directory();
    pid_t told = start_child(), other = start_child();
    g_autofree char *name = g_strdup_printf("%d", (int)told);
    g_autofree char *file = add(dir, name);
    restored_signal(&agent);
    int status;
    g_assert_cmpint(waitpid(told, &status, 0), ==, told); /* by the default action */
    g_assert_true(WIFSIGNALED(status));
    g_assert_cmpint(WTERMSIG(status), ==, SIGUSR2);
    g_assert_cmpint(waitpid(other, &status, WNOHANG), ==, 0);
    end_child(other);
    g_unlink(file);
    close_directory(dir);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/restored/names", test_names);
    g_test_add_func("/restored/signals", test_signals);
    g_test_add_func("/restored/times_move", test_times_move);
    g_test_add_func("/restored/prune", test_prune);
    g_test_add_func("/restored/signal", test_signal);
    return g_test_run();
}
