#include <fcntl.h>
#include <glib.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "os/fdpass.h"
#include "os/pidfd.h"

static void make_pair(int pair[2])
{
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), ==, 0);
}

static unsigned count_fds(void)
{
    GDir *dir = g_dir_open("/proc/self/fd", 0, NULL);
    unsigned n = 0;
    while (g_dir_read_name(dir))
        n++;
    g_dir_close(dir);
    return n;
}

static void test_message_with_fds(void)
{
    int pair[2], fds[SP_FDPASS_MAX], got[SP_FDPASS_MAX];
    make_pair(pair);
    g_autoptr(GError) error = NULL;
    for (unsigned i = 0; i < SP_FDPASS_MAX; i++)
        fds[i] = 2;
    g_assert_true(sp_fdpass_send(pair[0], "hello", 5, fds, SP_FDPASS_MAX, 100, &error));
    char text[16];
    size_t len = 0;
    unsigned n = 0;
    g_assert_true(sp_fdpass_receive(pair[1], text, sizeof text, &len, got, &n, 100, &error));
    g_assert_cmpmem(text, len, "hello", 5);
    g_assert_cmpuint(n, ==, SP_FDPASS_MAX);
    struct stat a, b;
    fstat(2, &a);
    for (unsigned i = 0; i < n; i++) {
        g_assert_cmpint(fstat(got[i], &b), ==, 0);
        g_assert_true(a.st_ino == b.st_ino);
        g_assert_true(fcntl(got[i], F_GETFD) & FD_CLOEXEC);
        close(got[i]);
    }
    close(pair[0]);
    g_assert_true(sp_fdpass_receive(pair[1], text, sizeof text, &len, got, &n, 100, &error));
    g_assert_cmpuint(len, ==, 0);
    g_assert_false(sp_fdpass_send(pair[1], "x", 1, NULL, 0, 100, NULL)); /* no SIGPIPE */
    close(pair[1]);
}

static void test_too_long_keeps_no_fd(void)
{
    int pair[2], got[SP_FDPASS_MAX], fd = 2;
    make_pair(pair);
    unsigned before = count_fds();
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_fdpass_send(pair[0], "0123456789", 10, &fd, 1, 100, &error));
    char text[4];
    size_t len;
    unsigned n;
    g_assert_false(sp_fdpass_receive(pair[1], text, sizeof text, &len, got, &n, 100, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INTERNAL);
    g_assert_cmpuint(count_fds(), ==, before);
    close(pair[0]);
    close(pair[1]);
}

static void test_deadlines(void)
{
    int pair[2], got[SP_FDPASS_MAX];
    make_pair(pair);
    char text[4];
    size_t len;
    unsigned n;
    g_autoptr(GError) error = NULL;
    int64_t start = sp_time_monotonic_ms();
    g_assert_false(sp_fdpass_receive(pair[1], text, sizeof text, &len, got, &n, 30, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    static const char big[50000];
    bool sent = true;
    for (int i = 0; i < 100 && sent; i++)
        sent = sp_fdpass_send(pair[0], big, sizeof big, NULL, 0, 30, NULL);
    g_assert_false(sent); /* nobody reads */
    g_assert_cmpint(sp_time_monotonic_ms() - start, <, 5000);
    close(pair[0]);
    close(pair[1]);
}

static void test_pidfd(void)
{
    g_autoptr(GError) error = NULL;
    pid_t pid = fork();
    if (pid == 0)
        for (;;)
            pause();
    int fd = sp_pidfd_open(pid, &error);
    g_assert_no_error(error);
    uint64_t ticks = 0, own = 0;
    g_assert_true(sp_process_start_ticks(pid, &ticks, &error));
    g_assert_true(sp_process_start_ticks(getpid(), &own, &error));
    g_assert_cmpuint(ticks, >=, own);
    g_assert_cmpuint(own, >, 0);
    g_assert_false(sp_pidfd_wait(fd, 0));
    g_assert_true(sp_pidfd_kill(fd, 2000, &error));
    g_assert_true(sp_pidfd_wait(fd, 0));
    waitpid(pid, NULL, 0);
    g_assert_true(sp_pidfd_signal(fd, SIGTERM, &error)); /* an ended process is no error */
    g_assert_no_error(error);
    close(fd);
    g_assert_cmpint(sp_pidfd_open(pid, &error), ==, -1);
    g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
    g_clear_error(&error);
    g_assert_false(sp_process_start_ticks(pid, &ticks, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/fdpass/message_with_fds", test_message_with_fds);
    g_test_add_func("/fdpass/too_long", test_too_long_keeps_no_fd);
    g_test_add_func("/fdpass/deadlines", test_deadlines);
    g_test_add_func("/pidfd/all", test_pidfd);
    return g_test_run();
}
