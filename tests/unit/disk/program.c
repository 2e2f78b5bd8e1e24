#include "disk/program.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "scratch.h"

static void collect(void *user, const char *line)
{
    g_ptr_array_add(user, g_strdup(line));
}

static bool run(const char *script, int64_t timeout_ms, GCancellable *cancellable, GPtrArray *lines,
                GError **error)
{
    const char *const argv[] = {"sh", "-c", script, NULL};
    const char *const env[] = {"COLOUR=green", NULL};
    const struct sp_program program = {
        .argv = argv,
        .env = env,
        .timeout_ms = timeout_ms,
        .cancellable = cancellable,
        .progress = lines != NULL ? collect : NULL,
        .user = lines,
    };
    return sp_program_run(&program, error);
}

static void test_output_and_status(void)
{
    g_autoptr(GPtrArray) lines = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GError) error = NULL;
    g_assert_true(
        run("echo one; echo $COLOUR >&2; printf 'a\\rb\\377'; head -c 5000 /dev/zero | tr "
            "'\\0' x",
            20000, NULL, lines, &error));
    g_assert_no_error(error);
    g_assert_cmpuint(lines->len, ==, 4);
    g_assert_cmpstr(lines->pdata[0], ==, "one");
    g_assert_cmpstr(lines->pdata[1], ==, "green");
    g_assert_cmpstr(lines->pdata[2], ==, "a");
    g_assert_true(g_str_has_prefix(lines->pdata[3], "b\357\277\275xxx"));
    g_assert_cmpuint(strlen(lines->pdata[3]), <, 1100);

    g_assert_false(run("echo because; exit 3", 20000, NULL, NULL, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INTERNAL);
    g_assert_cmpstr(error->message, ==, "sh: exit status 3: because");
    g_clear_error(&error);
    g_assert_false(run("kill -SEGV $$", 20000, NULL, NULL, &error));
    g_assert_cmpstr(error->message, ==, "sh: killed by signal 11");
    g_clear_error(&error);
    const char *const argv[] = {"no-such-program-here", NULL};
    const struct sp_program missing = {.argv = argv, .timeout_ms = 1000};
    g_assert_false(sp_program_run(&missing, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED);
}

/* Nothing of ours is handed down: no descriptor but 0, 1, 2, no environment, default signals. */
static void test_inherits_nothing(void)
{
    g_autoptr(GPtrArray) lines = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GError) error = NULL;
    int pipe_fds[2];
    g_assert_cmpint(pipe(pipe_fds), ==, 0); /* without close-on-exec */
    g_setenv("SECRET_OF_THE_WORKER", "1", TRUE);
    g_assert_true(
        run("echo \"[$SECRET_OF_THE_WORKER]\"; echo $(ls /proc/self/fd | wc -l); read x || echo "
            "eof",
            20000, NULL, lines, &error));
    g_assert_cmpstr(lines->pdata[0], ==, "[]");
    g_assert_cmpstr(lines->pdata[1], ==, "4"); /* 0, 1, 2 and the one of ls itself */
    g_assert_cmpstr(lines->pdata[2], ==, "eof");
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

/* The pid that a script has printed is gone within 5 s. */
static void check_gone(GPtrArray *lines)
{
    g_assert_cmpuint(lines->len, >=, 1);
    pid_t pid = (pid_t)g_ascii_strtoll(lines->pdata[0], NULL, 10);
    g_assert_cmpint(pid, >, 1);
    for (int i = 0; i < 500 && kill(pid, 0) == 0; i++) {
        g_autofree char *status = g_strdup_printf("/proc/%d/stat", pid);
        g_autofree char *text = NULL;
        if (g_file_get_contents(status, &text, NULL, NULL) && strstr(text, ") Z ") != NULL) {
            return; /* dead, its new parent has not looked yet */
        }
        g_usleep(10000);
    }
    g_assert_cmpint(kill(pid, 0), <, 0);
}

static void test_time_limit_kills_the_group(void)
{
    g_autoptr(GPtrArray) lines = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GError) error = NULL;
    int64_t start_ms = sp_time_monotonic_ms();
    g_assert_false(run("sleep 60 & echo $!; wait", 300, NULL, lines, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_assert_cmpint(sp_time_monotonic_ms() - start_ms, <, 20000);
    check_gone(lines);
}

/* A child that stays behind after a good end goes too, and is not waited for. */
static void test_end_kills_the_group(void)
{
    g_autoptr(GPtrArray) lines = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GError) error = NULL;
    g_assert_true(run("sleep 60 & echo $!", 20000, NULL, lines, &error));
    check_gone(lines);
}

static void *cancel_soon(void *cancellable)
{
    g_usleep(200000);
    g_cancellable_cancel(cancellable);
    return NULL;
}

static void test_cancel(void)
{
    g_autoptr(GPtrArray) lines = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GError) error = NULL;
    g_autoptr(GCancellable) cancellable = g_cancellable_new();
    GThread *thread = g_thread_new("cancel", cancel_soon, cancellable);
    int64_t start_ms = sp_time_monotonic_ms();
    g_assert_false(run("sleep 60 & echo $!; wait", 60000, cancellable, lines, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_assert_cmpint(sp_time_monotonic_ms() - start_ms, <, 20000);
    check_gone(lines);
    g_thread_join(thread);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/program/output_and_status", test_output_and_status);
    g_test_add_func("/program/inherits_nothing", test_inherits_nothing);
    g_test_add_func("/program/time_limit_kills_the_group", test_time_limit_kills_the_group);
    g_test_add_func("/program/end_kills_the_group", test_end_kills_the_group);
    g_test_add_func("/program/cancel", test_cancel);
    return g_test_run();
}
