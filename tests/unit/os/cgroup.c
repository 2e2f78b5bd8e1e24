/* Control groups on folders that look like the three layouts; and once on the real thing, as root.
 */
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "os/cgroup.h"

struct fixture {
    char *dir;
};

static void set_up(struct fixture *f, gconstpointer data)
{
    f->dir = g_dir_make_tmp("space-cgroup-XXXXXX", NULL);
    g_assert_nonnull(f->dir);
}

static void remove_tree(const char *path)
{
    GDir *dir = g_dir_open(path, 0, NULL);
    const char *name;
    while (dir && (name = g_dir_read_name(dir))) {
        g_autofree char *child = g_build_filename(path, name, NULL);
        if (g_file_test(child, G_FILE_TEST_IS_DIR) && !g_file_test(child, G_FILE_TEST_IS_SYMLINK))
            remove_tree(child);
        else
            unlink(child);
    }
    if (dir)
        g_dir_close(dir);
    rmdir(path);
}

static void tear_down(struct fixture *f, gconstpointer data)
{
    remove_tree(f->dir);
    g_free(f->dir);
}

static void put(struct fixture *f, const char *path, const char *text)
{
    g_autofree char *file = g_build_filename(f->dir, path, NULL);
    g_autofree char *dir = g_path_get_dirname(file);
    g_assert_cmpint(g_mkdir_with_parents(dir, 0755), ==, 0);
    g_assert_true(g_file_set_contents(file, text, -1, NULL));
}

static void expect(struct fixture *f, const char *path, const char *text)
{
    g_autofree char *file = g_build_filename(f->dir, path, NULL);
    g_autofree char *got = NULL;
    g_file_get_contents(file, &got, NULL, NULL);
    g_assert_cmpstr(got, ==, text);
}

static void make_v2(struct fixture *f)
{
    put(f, "cgroup.controllers", "cpuset cpu io memory pids\n");
    put(f, "cgroup.procs", "");
}

static void make_hybrid(struct fixture *f)
{
    put(f, "unified/cgroup.controllers", "hugetlb\n");
    put(f, "unified/cgroup.procs", "");
    put(f, "memory/cgroup.procs", "");
    put(f, "pids/cgroup.procs", "");
    put(f, "cpu,cpuacct/cgroup.procs", "");
    g_autofree char *link = g_build_filename(f->dir, "cpu", NULL);
    g_assert_cmpint(symlink("cpu,cpuacct", link), ==, 0);
}

static void make_v1(struct fixture *f)
{
    static const char *const names[] = {"memory", "pids", "cpu", "cpuacct", "freezer"};
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *path = g_strconcat(names[i], "/cgroup.procs", NULL);
        put(f, path, "");
    }
}

static struct sp_cgroups *open_fake(struct fixture *f, enum sp_cgroup_kind kind)
{
    g_autoptr(GError) error = NULL;
    struct sp_cgroups *cgroups = sp_cgroups_open_fake(f->dir, "root", &error);
    g_assert_no_error(error);
    g_assert_cmpint(sp_cgroups_kind(cgroups), ==, kind);
    return cgroups;
}

static const struct sp_cgroup_limits limits = {.memory_bytes = 64 << 20, .pids = 30, .cpus = 1.5};

static struct sp_cgroup *create(struct sp_cgroups *cgroups)
{
    g_autoptr(GError) error = NULL;
    struct sp_cgroup *group = sp_cgroup_new(cgroups, "g");
    g_assert_true(sp_cgroup_create(group, &limits, &error));
    g_assert_true(sp_cgroup_create(group, &limits, &error)); /* again is fine */
    g_assert_no_error(error);
    g_auto(GStrv) names = sp_cgroups_list(cgroups);
    g_assert_cmpuint(g_strv_length(names), ==, 1);
    g_assert_cmpstr(names[0], ==, "g");
    return group;
}

static void remove_all(struct sp_cgroups *cgroups, struct sp_cgroup *group)
{
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_cgroup_remove(group, 100, &error));
    g_assert_true(sp_cgroup_remove(group, 100, &error));
    g_assert_true(sp_cgroup_kill(group, 100, &error)); /* of nothing */
    g_auto(GStrv) names = sp_cgroups_list(cgroups);
    g_assert_cmpuint(g_strv_length(names), ==, 0);
    g_assert_true(sp_cgroups_remove_root(cgroups, &error));
    g_assert_no_error(error);
    sp_cgroup_free(group);
    sp_cgroups_free(cgroups);
}

static void test_v2(struct fixture *f, gconstpointer data)
{
    make_v2(f);
    struct sp_cgroups *cgroups = open_fake(f, SP_CGROUP_V2);
    struct sp_cgroup *group = create(cgroups);
    expect(f, "cgroup.subtree_control", "+memory +pids +cpu");
    expect(f, "root/cgroup.subtree_control", "+memory +pids +cpu");
    expect(f, "root/g/memory.max", "67108864");
    expect(f, "root/g/memory.swap.max", "0");
    expect(f, "root/g/pids.max", "30");
    expect(f, "root/g/cpu.max", "150000 100000");
    g_autoptr(GError) error = NULL;
    struct sp_cgroup_attach attach;
    g_assert_true(sp_cgroup_open_attach(group, &attach, &error));
    g_assert_cmpint(attach.dir_fd, >=, 0);
    g_assert_cmpuint(attach.n_procs, ==, 0);
    close(attach.dir_fd);
    put(f, "root/g/memory.current", "4096\n");
    put(f, "root/g/memory.peak", "8192\n");
    put(f, "root/g/pids.current", "3\n");
    put(f, "root/g/cpu.stat", "usage_usec 1234\nuser_usec 1000\n");
    put(f, "root/g/memory.events", "low 0\noom 7\noom_kill 2\n");
    struct sp_cgroup_usage u;
    g_assert_true(sp_cgroup_usage(group, &u, &error));
    g_assert_cmpint(u.memory_bytes, ==, 4096);
    g_assert_cmpint(u.memory_peak_bytes, ==, 8192);
    g_assert_cmpint(u.cpu_us, ==, 1234);
    g_assert_cmpint(u.pids, ==, 3);
    g_assert_cmpint(u.oom_kills, ==, 2);
    /* One that keeps its processes is an error, not a lie. */
    put(f, "root/g/cgroup.events", "populated 1\nfrozen 0\n");
    g_assert_false(sp_cgroup_kill(group, 20, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INTERNAL);
    g_clear_error(&error);
    expect(f, "root/g/cgroup.kill", "1");
    put(f, "root/g/cgroup.events", "populated 0\nfrozen 1\n");
    g_assert_true(sp_cgroup_kill(group, 20, &error));
    g_assert_true(sp_cgroup_freeze(group, true, 20, &error));
    expect(f, "root/g/cgroup.freeze", "1");
    g_assert_true(sp_cgroup_is_frozen(group));
    g_assert_false(sp_cgroup_freeze(group, false, 20, NULL));
    g_assert_false(sp_cgroup_is_frozen(group)); /* it is told to go on, if it does or not */
    g_assert_no_error(error);
    remove_all(cgroups, group);
}

static void test_v2_without_a_controller(struct fixture *f, gconstpointer data)
{
    put(f, "cgroup.controllers", "cpuset cpu memory\n");
    put(f, "cgroup.procs", "");
    g_autoptr(GError) error = NULL;
    g_assert_null(sp_cgroups_open_fake(f->dir, "root", &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED);
    g_assert_nonnull(strstr(error->message, "pids"));
}

/* A top group that holds a process and cannot hand out controllers: the fake's file for that is a
 * directory. */
static void refuse_busy_top(struct fixture *f, gint code)
{
    g_autoptr(GError) error = NULL;
    struct sp_cgroups *cgroups = open_fake(f, SP_CGROUP_V2);
    struct sp_cgroup *group = sp_cgroup_new(cgroups, "g");
    g_assert_false(sp_cgroup_create(group, &limits, &error));
    g_assert_error(error, SP_ERROR, code);
    sp_cgroup_free(group);
    sp_cgroups_free(cgroups);
}

static void test_v2_busy_top(struct fixture *f, gconstpointer data)
{
    make_v2(f);
    put(f, "cgroup.subtree_control/is", "a directory");
    g_autofree char *both = g_strdup_printf("%d\n1\n", (int)getpid());
    g_autofree char *own = g_strdup_printf("%d", (int)getpid());
    /* The root of all: nobody moves. */
    put(f, "cgroup.procs", own);
    refuse_busy_top(f, SP_ERROR_INTERNAL);
    expect(f, "root-others/cgroup.procs", NULL);
    /* The top of a delegated part: not when there is a process of someone else. */
    put(f, "cgroup.type", "domain\n");
    put(f, "cgroup.procs", both);
    refuse_busy_top(f, SP_ERROR_UNSUPPORTED);
    put(f, "cgroup.procs", "0\n");
    refuse_busy_top(f, SP_ERROR_UNSUPPORTED);
    expect(f, "root-others/cgroup.procs", NULL);
    /* Our own does. */
    put(f, "cgroup.procs", own);
    refuse_busy_top(f, SP_ERROR_INTERNAL); /* the fake's stays listed */
    expect(f, "root-others/cgroup.procs", own);
}

static void test_hybrid(struct fixture *f, gconstpointer data)
{
    make_hybrid(f);
    struct sp_cgroups *cgroups = open_fake(f, SP_CGROUP_HYBRID);
    struct sp_cgroup *group = create(cgroups);
    expect(f, "memory/root/g/memory.limit_in_bytes", "67108864");
    expect(f, "memory/root/g/memory.memsw.limit_in_bytes", "67108864");
    expect(f, "pids/root/g/pids.max", "30");
    expect(f, "cpu,cpuacct/root/g/cpu.cfs_quota_us", "150000");
    expect(f, "cpu,cpuacct/root/g/cpu.cfs_period_us", "100000");
    expect(f, "unified/root/cgroup.subtree_control", NULL); /* no controllers to hand on */
    g_autoptr(GError) error = NULL;
    struct sp_cgroup_attach attach;
    g_assert_true(sp_cgroup_open_attach(group, &attach, &error));
    g_assert_cmpint(attach.dir_fd, >=, 0);
    g_assert_cmpuint(attach.n_procs, ==, 3);
    close(attach.dir_fd);
    for (unsigned i = 0; i < attach.n_procs; i++)
        close(attach.procs_fds[i]);
    put(f, "memory/root/g/memory.usage_in_bytes", "4096\n");
    put(f, "memory/root/g/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
    put(f, "unified/root/g/cpu.stat", "usage_usec 77\n");
    struct sp_cgroup_usage u;
    g_assert_true(sp_cgroup_usage(group, &u, &error));
    g_assert_cmpint(u.oom_kills, ==, 5);
    g_assert_cmpint(u.cpu_us, ==, 77);
    g_assert_cmpint(u.memory_peak_bytes, ==, 0);
    int oom = sp_cgroup_open_oom(group, &error);
    g_assert_cmpint(oom, >=, 0);
    close(oom);
    put(f, "unified/root/g/cgroup.events", "populated 0\n");
    g_assert_true(sp_cgroup_kill(group, 20, &error));
    expect(f, "unified/root/g/cgroup.kill", "1");
    g_assert_true(sp_cgroup_delegate(group, getuid(), getgid(), &error));
    expect(f, "unified/root/g/cgroup.max.depth", "2");
    g_assert_no_error(error);
    remove_all(cgroups, group);
}

static void test_v1(struct fixture *f, gconstpointer data)
{
    make_v1(f);
    struct sp_cgroups *cgroups = open_fake(f, SP_CGROUP_V1);
    struct sp_cgroup *group = create(cgroups);
    g_autoptr(GError) error = NULL;
    struct sp_cgroup_attach attach;
    g_assert_true(sp_cgroup_open_attach(group, &attach, &error));
    g_assert_cmpint(attach.dir_fd, ==, -1);
    g_assert_cmpuint(attach.n_procs, ==, 5);
    for (unsigned i = 0; i < attach.n_procs; i++)
        close(attach.procs_fds[i]);
    g_assert_cmpint(sp_cgroup_open_dir(group, &error), ==, -1);
    g_assert_true(sp_cgroup_freeze(group, true, 20, &error));
    expect(f, "freezer/root/g/freezer.state", "FROZEN");
    g_assert_true(sp_cgroup_is_frozen(group));
    g_assert_true(sp_cgroup_freeze(group, false, 20, &error));
    g_assert_false(sp_cgroup_is_frozen(group));
    put(f, "cpuacct/root/g/cpuacct.usage", "5000000\n");
    put(f, "memory/root/g/memory.usage_in_bytes", "1\n");
    struct sp_cgroup_usage u;
    g_assert_true(sp_cgroup_usage(group, &u, &error));
    g_assert_cmpint(u.cpu_us, ==, 5000);
    /* Kill goes by the list: a process that stays in it makes an error. */
    pid_t pid = fork();
    if (pid == 0)
        for (;;)
            pause();
    g_autofree char *text = g_strdup_printf("%d\n", (int)pid);
    put(f, "memory/root/g/cgroup.procs", text);
    g_assert_false(sp_cgroup_kill(group, 30, NULL));
    int status = 0;
    g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
    g_assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    put(f, "memory/root/g/cgroup.procs", "");
    g_assert_true(sp_cgroup_kill(group, 30, &error));
    expect(f, "freezer/root/g/freezer.state", "THAWED");
    g_assert_no_error(error);
    remove_all(cgroups, group);
}

static void test_nothing_mounted(struct fixture *f, gconstpointer data)
{
    g_autoptr(GError) error = NULL;
    g_assert_null(sp_cgroups_open_fake(f->dir, "root", &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED);
    g_clear_error(&error);
    /* Files alone do not make a cgroup file system. */
    make_v1(f);
    g_assert_null(sp_cgroups_open(f->dir, "root", &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED);
}

/* A process and its child in a group with a group below; freeze, usage, kill, remove. */
static void test_real(struct fixture *f, gconstpointer data)
{
    if (geteuid() != 0) {
        g_test_skip("NOT TESTED: real cgroups need root");
        return;
    }
    g_autoptr(GError) error = NULL;
    g_autofree char *root = g_path_get_basename(f->dir);
    struct sp_cgroups *cgroups = sp_cgroups_open(NULL, root, &error);
    g_assert_no_error(error);
    g_test_message("%s", sp_cgroups_kind_name(cgroups));
    struct sp_cgroup *group = create(cgroups);
    const struct sp_cgroup_limits more = {.memory_bytes = 128 << 20, .pids = 40, .cpus = 1};
    g_assert_true(sp_cgroup_create(group, &more, &error));   /* grows */
    g_assert_true(sp_cgroup_create(group, &limits, &error)); /* shrinks */
    pid_t pid = fork();
    if (pid == 0) {
        while (getppid() > 1)
            usleep(1000);
        _exit(0);
    }
    g_assert_true(sp_cgroup_attach_pid(group, pid, &error));
    struct sp_cgroup_usage u;
    g_assert_true(sp_cgroup_usage(group, &u, &error));
    g_assert_cmpint(u.pids, ==, 1);
    g_assert_true(sp_cgroup_freeze(group, true, 2000, &error));
    g_assert_false(sp_cgroup_remove(group, 20, NULL));
    g_assert_true(sp_cgroup_kill(group, 2000, &error));
    int status = 0;
    g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
    g_assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    int dir = sp_cgroup_open_dir(group, &error);
    if (dir >= 0) {
        g_assert_cmpint(mkdirat(dir, "below", 0755), ==, 0);
        g_assert_cmpint(mkdirat(dir, "below/more", 0755), ==, 0);
        close(dir);
    }
    g_assert_no_error(error);
    remove_all(cgroups, group);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(name, function) g_test_add(name, struct fixture, NULL, set_up, function, tear_down)
    ADD("/cgroup/v2", test_v2);
    ADD("/cgroup/v2_without_a_controller", test_v2_without_a_controller);
    ADD("/cgroup/v2_busy_top", test_v2_busy_top);
    ADD("/cgroup/hybrid", test_hybrid);
    ADD("/cgroup/v1", test_v1);
    ADD("/cgroup/nothing", test_nothing_mounted);
    ADD("/cgroup/real", test_real);
    return g_test_run();
}
