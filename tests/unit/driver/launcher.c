/* The launcher with real processes. Namespaces need root; those tests say so when they cannot run.
 */
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/launcher.h"
#include "os/pidfd.h"

static struct sp_launcher *start(void)
{
    g_autoptr(GError) error = NULL;
    struct sp_launcher *launcher = sp_launcher_start("/proc/self/exe", &error);
    g_assert_no_error(error);
    return launcher;
}

static bool need_root(void)
{
    if (geteuid() == 0)
        return true;
    g_test_skip("NOT TESTED: needs root for namespaces and ids");
    return false;
}

/* Runs a plan whose stdout is a pipe; returns what it wrote. */
static char *run(struct sp_launcher *launcher, struct sp_plan *plan)
{
    int out[2];
    g_assert_cmpint(pipe2(out, O_CLOEXEC), ==, 0);
    sp_plan_pass_fd(plan, "out", out[1], 1);
    pid_t pid = 0;
    int pidfd = -1;
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_launcher_spawn(launcher, plan, &pid, &pidfd, &error));
    g_assert_no_error(error);
    g_assert_cmpint(pid, >, 0);
    sp_plan_free(plan); /* closes the write end */
    GString *text = g_string_new(NULL);
    for (;;) {
        struct pollfd p = {.fd = out[0], .events = POLLIN};
        g_assert_cmpint(poll(&p, 1, 10000), ==, 1);
        char buffer[512];
        ssize_t n = read(out[0], buffer, sizeof buffer);
        g_assert_cmpint(n, >=, 0);
        if (n == 0)
            break;
        g_string_append_len(text, buffer, n);
    }
    close(out[0]);
    g_assert_true(sp_pidfd_wait(pidfd, 10000));
    close(pidfd);
    return g_string_free(text, FALSE);
}

static struct sp_plan *shell(const char *script)
{
    struct sp_plan *plan = sp_plan_new("test");
    sp_plan_exec(plan, "/bin/sh", (const char *const[]){"sh", "-c", script, NULL},
                 (const char *const[]){"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "A=b c", NULL});
    return plan;
}

static void test_runs_with_env_and_stdio(void)
{
    struct sp_launcher *launcher = start();
    g_autofree char *text =
        run(launcher, shell("echo \"$A|$HOME\"; readlink /proc/self/fd/0; pwd"));
    g_assert_cmpstr(text, ==, "b c|\n/dev/null\n/\n");
    sp_launcher_stop(launcher);
}

static void test_only_passed_fds(void)
{
    struct sp_launcher *launcher = start();
    int leak = open("/etc/passwd", O_RDONLY); /* not close-on-exec on purpose */
    g_assert_cmpint(leak, >, 2);
    struct sp_plan *plan = shell("exec 2>&1; cd /proc/self/fd; echo *; cat <&7");
    int data[2];
    g_assert_cmpint(pipe2(data, O_CLOEXEC), ==, 0);
    g_assert_cmpint(write(data[1], "seven", 5), ==, 5);
    close(data[1]);
    sp_plan_pass_fd(plan, "data", data[0], 7);
    /* Numbers that collide with the launcher's own ones. */
    sp_plan_pass_fd(plan, "three", open("/dev/zero", O_RDONLY | O_CLOEXEC), 3);
    sp_plan_pass_fd_borrowed(plan, "four", leak, 4);
    g_autofree char *text = run(launcher, plan);
    /* 5 is the folder that the shell is reading. */
    g_assert_cmpstr(text, ==, "0 1 2 3 4 5 7\nseven");
    close(leak);
    sp_launcher_stop(launcher);
}

static void expect_failure(struct sp_plan *plan, struct sp_launcher *launcher, const char *text)
{
    pid_t pid = 0;
    int pidfd = -1;
    g_autoptr(GError) error = NULL;
    g_assert_false(sp_launcher_spawn(launcher, plan, &pid, &pidfd, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INTERNAL);
    g_assert_cmpstr(error->message, ==, text);
    g_assert_cmpint(pid, ==, 0);
    g_assert_cmpint(pidfd, ==, -1);
    sp_plan_free(plan);
}

static void test_failures_name_the_step(void)
{
    struct sp_launcher *launcher = start();
    struct sp_plan *plan = sp_plan_new("test");
    sp_plan_exec(plan, "/no/such", (const char *const[]){"x", NULL}, (const char *const[]){NULL});
    expect_failure(plan, launcher, "test: exec /no/such: No such file or directory");

    plan = shell("true");
    sp_plan_mkdir(plan, "/no/such/dir", 0755);
    expect_failure(plan, launcher,
                   "test: step 0 (mkdir /no/such/dir 0755): No such file or directory");

    plan = shell("true");
    sp_plan_chdir(plan, "/no/such");
    expect_failure(plan, launcher, "test: chdir /no/such: No such file or directory");

    if (geteuid() == 0) {
        plan = shell("true");
        sp_plan_namespaces(plan, CLONE_NEWNS | CLONE_NEWUTS);
        sp_plan_private_mounts(plan);
        sp_plan_mount(plan, "nosuchfs", "/tmp", NULL, SP_MOUNT_RO);
        expect_failure(plan, launcher, "test: step 1 (mount nosuchfs at /tmp ro): No such device");
        plan = shell("true");
        sp_plan_cgroup_procs(plan, "bad", open("/dev/full", O_WRONLY | O_CLOEXEC));
        expect_failure(plan, launcher, "test: join the cgroup: No space left on device");
    }
    /* The launcher is as good as new after a failure. */
    g_autofree char *ok = run(launcher, shell("echo ok"));
    g_assert_cmpstr(ok, ==, "ok\n");
    sp_launcher_stop(launcher);
}

static void test_a_dead_launcher_is_restarted(void)
{
    struct sp_launcher *launcher = start();
    pid_t before = sp_launcher_pid(launcher);
    int pidfd = sp_pidfd_open(before, NULL);
    g_assert_cmpint(kill(before, SIGKILL), ==, 0);
    g_assert_true(sp_pidfd_wait(pidfd, 5000));
    close(pidfd);
    g_autofree char *text = run(launcher, shell("echo again"));
    g_assert_cmpstr(text, ==, "again\n");
    g_assert_cmpint(sp_launcher_pid(launcher), !=, before);
    sp_launcher_stop(launcher);
}

static void test_children_outlive_the_launcher(void)
{
    struct sp_launcher *launcher = start();
    struct sp_plan *plan = shell("exec sleep 100");
    pid_t pid = 0;
    int pidfd = -1;
    g_assert_true(sp_launcher_spawn(launcher, plan, &pid, &pidfd, NULL));
    sp_plan_free(plan);
    sp_launcher_stop(launcher);
    g_assert_false(sp_pidfd_wait(pidfd, 50));
    g_assert_true(sp_pidfd_kill(pidfd, 5000, NULL));
    close(pidfd);
}

static void test_no_zombies(void)
{
    struct sp_launcher *launcher = start();
    for (int i = 0; i < 20; i++) {
        g_autofree char *text = run(launcher, shell(":"));
        g_assert_cmpstr(text, ==, "");
    }
    g_autofree char *path = g_strdup_printf("/proc/%d/task/%d/children", sp_launcher_pid(launcher),
                                            sp_launcher_pid(launcher));
    g_autofree char *children = NULL;
    /* The last one may be between its pidfd's event and its reaping. */
    for (int i = 0; i < 200; i++) {
        g_clear_pointer(&children, g_free);
        g_assert_true(g_file_get_contents(path, &children, NULL, NULL));
        if (!*children)
            break;
        poll(NULL, 0, 5);
    }
    g_assert_cmpstr(children, ==, "");
    sp_launcher_stop(launcher);
}

static void test_own_root_and_namespaces(void)
{
    if (!need_root())
        return;
    struct sp_launcher *launcher = start();
    struct sp_plan *plan = shell("id -u; hostname; echo $$; echo /*; cat /proc/self/mountinfo | "
                                 "cut -d' ' -f5; touch /x 2>&1; grep -E 'CapBnd|NoNewPrivs' "
                                 "/proc/self/status; ls /sys/class/net 2>&1 | wc -l");
    sp_plan_namespaces(plan,
                       CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET);
    sp_plan_private_mounts(plan);
    sp_plan_root_tmpfs(plan, "size=1m,mode=755");
    static const char *const dirs[] = {"usr", "proc", "dev", NULL};
    for (const char *const *d = dirs; *d; d++)
        sp_plan_mkdir(plan, *d, 0755);
    sp_plan_bind(plan, "/usr", "usr", SP_MOUNT_RO | SP_MOUNT_NODEV);
    static const char *const links[] = {"bin", "lib", "lib64", "sbin", NULL};
    for (const char *const *l = links; *l; l++) {
        g_autofree char *to = g_strconcat("usr/", *l, NULL);
        sp_plan_symlink(plan, to, *l);
    }
    sp_plan_touch(plan, "dev/null", 0666);
    sp_plan_bind(plan, "/dev/null", "dev/null", 0);
    sp_plan_bind(plan, "/no/such", "dev", SP_BIND_OPTIONAL);
    sp_plan_pivot(plan);
    sp_plan_mount(plan, "proc", "/proc", NULL, SP_MOUNT_NOSUID | SP_MOUNT_NODEV | SP_MOUNT_NOEXEC);
    sp_plan_drop_old_root(plan);
    sp_plan_remount(plan, "/", SP_MOUNT_RO);
    sp_plan_hostname(plan, "inner");
    sp_plan_lo_up(plan);
    sp_plan_rlimit(plan, RLIMIT_CORE, 0, 0);
    sp_plan_capabilities(plan, 0);
    sp_plan_become(plan, 12345, 12346);
    sp_plan_no_new_privs(plan);
    g_autofree char *text = run(launcher, plan);
    g_assert_cmpstr(text, ==,
                    "12345\ninner\n1\n/bin /dev /lib /lib64 /proc /sbin /usr\n"
                    "/\n/usr\n/dev/null\n/proc\n"
                    "touch: cannot touch '/x': Read-only file system\n"
                    "CapBnd:\t0000000000000000\nNoNewPrivs:\t1\n1\n");
    sp_launcher_stop(launcher);
}

static void test_user_namespace(void)
{
    if (!need_root())
        return;
    struct sp_launcher *launcher = start();
    g_autoptr(GError) error = NULL;
    int fd = sp_launcher_user_namespace(launcher, 0x50000000, 65536, &error);
    g_assert_no_error(error);
    struct sp_plan *plan = shell("cat /proc/self/uid_map; id -u; id -g; grep Groups "
                                 "/proc/self/status");
    sp_plan_namespaces(plan, CLONE_NEWUSER);
    sp_plan_map_ids(plan, 0x50000000, 65536);
    sp_plan_become(plan, 0, 0);
    g_autofree char *text = run(launcher, plan);
    g_assert_cmpstr(text, ==, "         0 1342177280      65536\n0\n0\nGroups:\t \n");
    close(fd);
    sp_launcher_stop(launcher);
}

static gpointer spawn_many(gpointer launcher)
{
    for (int i = 0; i < 20; i++) {
        g_autofree char *text = run(launcher, shell("echo x"));
        g_assert_cmpstr(text, ==, "x\n");
    }
    return NULL;
}

static void test_threads(void)
{
    struct sp_launcher *launcher = start();
    GThread *threads[4];
    for (unsigned i = 0; i < G_N_ELEMENTS(threads); i++)
        threads[i] = g_thread_new("spawn", spawn_many, launcher);
    for (unsigned i = 0; i < G_N_ELEMENTS(threads); i++)
        g_thread_join(threads[i]);
    sp_launcher_stop(launcher);
}

int main(int argc, char **argv)
{
    if (argc == 2 && g_str_equal(argv[1], "launcher"))
        return sp_launcher_main(SP_LAUNCHER_FD);
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/launcher/env_and_stdio", test_runs_with_env_and_stdio);
    g_test_add_func("/launcher/only_passed_fds", test_only_passed_fds);
    g_test_add_func("/launcher/failures_name_the_step", test_failures_name_the_step);
    g_test_add_func("/launcher/restart", test_a_dead_launcher_is_restarted);
    g_test_add_func("/launcher/children_outlive_it", test_children_outlive_the_launcher);
    g_test_add_func("/launcher/no_zombies", test_no_zombies);
    g_test_add_func("/launcher/own_root", test_own_root_and_namespaces);
    g_test_add_func("/launcher/user_namespace", test_user_namespace);
    g_test_add_func("/launcher/threads", test_threads);
    return g_test_run();
}
