/* Failpoints: what they do, that they are used up, that they cost nothing when off. */
#include "base/failpoint.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"

static char *file;

static void put(const char *text)
{
    g_assert_true(g_file_set_contents(file, text, -1, NULL));
}

static char *rest(void)
{
    char *text = NULL;
    g_assert_true(g_file_get_contents(file, &text, NULL, NULL));
    return text;
}

static void test_error(void)
{
    g_autoptr(GError) error = NULL;
    put("b.x kill\na.one error\n");
    g_assert_true(sp_failpoint("a.on", &error));
    g_assert_true(sp_failpoint("a.one.more", &error));
    g_assert_false(sp_failpoint("a.one", &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_assert_nonnull(strstr(error->message, "a.one"));
    g_autofree char *left = rest();
    g_assert_cmpstr(left, ==, "b.x kill\n");
    g_assert_true(sp_failpoint("a.one", NULL));
}

static void test_count(void)
{
    put("a error 3\n");
    for (int i = 0; i < 3; i++)
        g_assert_false(sp_failpoint("a", NULL));
    g_assert_true(sp_failpoint("a", NULL));
    g_autofree char *left = rest();
    g_assert_cmpstr(left, ==, "");
}

static void test_delay(void)
{
    put("a delay:60\n");
    int64_t began = sp_time_monotonic_ms();
    g_assert_true(sp_failpoint("a", NULL));
    g_assert_cmpint(sp_time_monotonic_ms() - began, >=, 60);
}

static int status_of_child(const char *line)
{
    put(line);
    pid_t pid = fork();
    if (pid == 0) {
        sp_failpoint("a", NULL);
        _exit(1);
    }
    int status;
    g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
    g_autofree char *left = rest();
    g_assert_cmpstr(left, ==, ""); /* used up before it dies: the next start goes on */
    return status;
}

static void test_ends(void)
{
    int status = status_of_child("a kill\n");
    g_assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    status = status_of_child("a exit\n");
    g_assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 70);
}

static void *hit(void *counter)
{
    for (int i = 0; i < 50; i++) {
        if (!sp_failpoint("a", NULL))
            g_atomic_int_inc((gint *)counter);
    }
    return NULL;
}

static void test_threads(void)
{
    gint counter = 0;
    GThread *threads[4];
    put("a error 77\n");
    for (int i = 0; i < 4; i++)
        threads[i] = g_thread_new("hit", hit, &counter);
    for (int i = 0; i < 4; i++)
        g_thread_join(threads[i]);
    g_assert_cmpint(counter, ==, 77);
}

static void test_no_file(void)
{
    unlink(file);
    g_assert_true(sp_failpoint("a", NULL));
    g_assert_false(g_file_test(file, G_FILE_TEST_EXISTS));
}

int main(int argc, char **argv)
{
    g_autofree char *dir = g_dir_make_tmp("space-failpoint-XXXXXX", NULL);
    const char *given = getenv(SP_FAILPOINTS_ENV);
    if (!given) { /* the variable is read before main() */
        g_autofree char *path = g_build_filename(dir, "points", NULL);
        setenv(SP_FAILPOINTS_ENV, path, 1);
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            execv("/proc/self/exe", argv);
            _exit(127);
        }
        waitpid(pid, &status, 0);
        g_autofree char *lock = g_strconcat(path, ".lock", NULL);
        unlink(path);
        unlink(lock);
        rmdir(dir);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    }
    rmdir(dir);
    file = g_strdup(given);
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/failpoint/error", test_error);
    g_test_add_func("/failpoint/count", test_count);
    g_test_add_func("/failpoint/delay", test_delay);
    g_test_add_func("/failpoint/ends", test_ends);
    g_test_add_func("/failpoint/threads", test_threads);
    g_test_add_func("/failpoint/no_file", test_no_file);
    return g_test_run();
}
