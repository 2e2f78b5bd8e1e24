/* The container driver with real namespaces, cgroups and mounts. Needs root; says so when it cannot
 * run. */
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <glib/gstdio.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/time.h"
#include "disk/image.h"
#include "disk/layer.h"
#include "disk/template.h"
#include "disk/volume.h"
#include "driver/container/container.h"
#include "os/mount.h"
#include "os/pidfd.h"
#include "container_world.h"

static void test_inside(struct fixture *f, gconstpointer data)
{
    struct box box = {0};
    create(f, &box, 3);
    expect(f, &box, "status", "0 0 1 inner\n");
    expect(f, &box, "cat /etc/os", "image\n");
    expect(f, &box, "cat /home/mine", "mine\n");
    g_autofree char *groups = ask(f, &box, "cat /proc/self/cgroup");
    g_auto(GStrv) lines = g_strsplit(g_strchomp(groups), "\n", -1);
    for (char **l = lines; *l; l++)
        g_assert_true(g_str_has_suffix(*l, ":/"));
    expect(f, &box, "write /etc/os", "/etc/os ok\n");
    expect(f, &box, "cat /etc/os", "datae\n");
    expect(f, &box, "write /tmp/new", "/tmp/new ok\n");
    expect(f, &box, "write /dev/new", "/dev/new EROFS\n");
    expect(f, &box, "write /dev/null", "/dev/null ok\n");
    expect(f, &box, "write /proc/sys/net/ipv4/ip_forward",
           "/proc/sys/net/ipv4/ip_forward EACCES\n");
    expect(f, &box, "cat /proc/kallsyms", "");
    expect(f, &box, "ls /sys", "");
    g_autofree char *map = ask(f, &box, "cat /proc/self/uid_map");
    g_assert_nonnull(strstr(map, " 65536\n"));
    g_autofree char *dev = ask(f, &box, "ls /proc/self/fd");
    g_assert_nonnull(dev);
    g_autofree char *layer = sp_layer_path(f->volume, box.id);
    g_autofree char *file = g_build_filename(layer, "upper/tmp/new", NULL);
    struct stat s;
    g_assert_cmpint(lstat(file, &s), ==, 0);
    g_assert_cmpuint(s.st_uid, ==, sp_layer_is_mapped(f->volume) ? 0 : SP_SLOT_UID(3));
    expect(f, &box, "stat /tmp/new", "/tmp/new file 0 0 644 1\n");
    destroy(f, &box);
    clear(&box);
}

static void test_mountinfo_tells_nothing(struct fixture *f, gconstpointer data)
{
    struct box box = {0};
    create(f, &box, 4);
    g_autofree char *info = ask(f, &box, "cat /proc/self/mountinfo");
    g_test_message("%s", info);
    g_assert_null(strstr(info, f->state));
    g_assert_null(strstr(info, "var/tmp"));
    g_assert_null(strstr(info, box.id));
    g_assert_null(strstr(info, "/sys/fs"));
    /* Nothing that is mounted inside comes out or into another, whatever the host's are. */
    g_assert_null(strstr(info, " shared:"));
    g_assert_nonnull(strstr(info, " /sys /proc/sys ro,"));
    g_assert_nonnull(strstr(info, " / /dev ro,"));
    g_assert_nonnull(strstr(info, "lowerdir=/proc/self/fd/"));
    g_autofree char *environ = ask(f, &box, "cat /proc/1/environ");
    g_assert_null(strstr(environ, f->state));
    destroy(f, &box);
    clear(&box);
}

static void test_attacks_fail(struct fixture *f, gconstpointer data)
{
    struct box box = {0};
    create(f, &box, 5);
    expect(f, &box, "attacks",
           "mount EPERM\numount EPERM\nunshare EPERM\nsetns EPERM\nclone EPERM\nbpf EPERM\n"
           "keyctl EPERM\nio_uring EPERM\nmknod EPERM\nfifo ok\npacket EAFNOSUPPORT\nraw EPERM\n"
           "inet ok\nnetlink ok\naudit EPROTONOSUPPORT\nunknown ENOSYS\nhostname EPERM\nchroot ok\n"
           "statmount ENOSYS\n");
    g_autofree char *status = ask(f, &box, "cat /proc/self/status");
    g_assert_nonnull(strstr(status, "CapBnd:\t00000000100405fb\n"));
    g_assert_nonnull(strstr(status, "CapInh:\t0000000000000000\n"));
    g_assert_nonnull(strstr(status, "CapAmb:\t0000000000000000\n"));
    g_assert_nonnull(strstr(status, "NoNewPrivs:\t1\n"));
    g_assert_nonnull(strstr(status, "Seccomp:\t2\n"));
    destroy(f, &box);
    clear(&box);
}

static void test_groups(struct fixture *f, gconstpointer data)
{
    struct box box = {0};
    create(f, &box, 6);
    g_autoptr(GError) error = NULL;
    struct sp_cgroups *cgroups = sp_cgroups_open(NULL, f->root_name, &error);
    g_assert_no_error(error);
    if (sp_cgroups_kind(cgroups) == SP_CGROUP_V1)
        g_test_skip("NOT TESTED: this host has no cgroup2");
    else
        expect(f, &box, "groups",
               "mkdir ok\nmove ok\nkill ok\nstatus 9\nrmdir ok\nlimit EACCES\n"
               "freeze-self EACCES\nup is here\noom ok\noom-write EBADF\n");
    struct sp_cgroup *cgroup = sp_cgroup_new(cgroups, box.id);
    struct sp_cgroup_usage usage;
    g_assert_true(sp_cgroup_usage(cgroup, &usage, &error));
    g_assert_cmpint(usage.pids, ==, 1);
    g_assert_cmpint(usage.cpu_us, >, 0);
    g_assert_true(sp_cgroup_freeze(cgroup, true, 2000, &error));
    g_assert_true(sp_cgroup_freeze(cgroup, false, 2000, &error));
    g_assert_no_error(error);
    sp_cgroup_free(cgroup);
    sp_cgroups_free(cgroups);
    destroy(f, &box);
    clear(&box);
}

static void test_two_are_apart_and_all_processes_end(struct fixture *f, gconstpointer data)
{
    struct box a = {0}, b = {0};
    create(f, &a, 7);
    create(f, &b, 8);
    expect(f, &a, "write /tmp/x", "/tmp/x ok\n");
    expect(f, &b, "cat /tmp/x", "/tmp/x ENOENT\n");
    expect(f, &a, "write /dev/shm/x", "/dev/shm/x ok\n");
    expect(f, &b, "cat /dev/shm/x", "/dev/shm/x ENOENT\n");
    expect(f, &a, "daemonize", "ok\n");
    destroy(f, &a);
    expect(f, &b, "status", "0 0 1 inner\n");
    destroy(f, &b);
    clear(&a);
    clear(&b);
}

static void test_limits(struct fixture *f, gconstpointer data)
{
    struct box box = {0};
    create(f, &box, 13);
    expect(f, &box, "forks", "19 EAGAIN\n"); /* and PID 1 */
    if (sp_cgroups_kind(((struct sp_container_driver *)f->driver)->cgroups) != SP_CGROUP_V1)
        expect(f, &box, "eat", "signal 9 oom 1\n");
    expect(f, &box, "status", "0 0 1 inner\n");
    destroy(f, &box);
    clear(&box);
}

struct worker {
    struct fixture *f;
    unsigned first_slot;
};

static gpointer create_and_destroy(gpointer argument)
{
    const struct worker *w = argument;
    struct box boxes[5] = {0};
    for (unsigned i = 0; i < G_N_ELEMENTS(boxes); i++)
        create(w->f, &boxes[i], w->first_slot + i);
    for (unsigned i = 0; i < G_N_ELEMENTS(boxes); i++) {
        expect(w->f, &boxes[i], "status", "0 0 1 inner\n");
        destroy(w->f, &boxes[i]);
        clear(&boxes[i]);
    }
    return NULL;
}

/* Fifty at once from ten threads, beginning with everything that is made at first use; slots beyond
 * the number of kept idmaps. */
static void test_many_at_once(struct fixture *f, gconstpointer data)
{
    GThread *threads[10];
    struct worker workers[G_N_ELEMENTS(threads)];
    for (unsigned i = 0; i < G_N_ELEMENTS(threads); i++) {
        workers[i] = (struct worker){f, 40 + i * 5};
        threads[i] = g_thread_new("create", create_and_destroy, &workers[i]);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(threads); i++)
        g_thread_join(threads[i]);
}

static void test_adopt(struct fixture *f, gconstpointer data)
{
    struct box box = {0};
    create(f, &box, 9);
    f->ops->instance_free(box.instance);
    /* A later worker has another launcher and another driver. */
    f->ops->driver_free(f->driver);
    sp_launcher_stop(f->env.launcher);
    g_autoptr(GError) error = NULL;
    f->env.launcher = sp_launcher_start("/proc/self/exe", &error);
    f->driver = sp_driver_container_new(&f->env, &error);
    box.instance = f->ops->adopt(f->driver, box.run_dir, NULL, &error);
    g_assert_no_error(error);
    expect(f, &box, "status", "0 0 1 inner\n");
    g_assert_true(sp_pidfd_kill(f->ops->pidfd(box.instance), 5000, &error));
    g_assert_null(f->ops->adopt(f->driver, box.run_dir, NULL, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
    destroy(f, &box);
    clear(&box);
}

/* A worker that died at each stage of create(): the record and what was made by then. */
static void test_half_made(struct fixture *f, gconstpointer data)
{
    for (int stage = 0; stage < 5; stage++) {
        g_autoptr(GError) error = NULL;
        struct box box = {0};
        struct sp_driver_spec spec = spec_of(f, &box, 10);
        struct sp_record record = {.id = box.id,
                                   .tier = (char *)"container",
                                   .template_digest = f->digest,
                                   .cgroup = box.id,
                                   .slot = 10};
        if (stage < 4)
            g_assert_true(sp_record_save(box.run_dir, &record, &error));
        if (stage >= 1 && stage < 4) {
            struct sp_cgroups *cgroups = sp_cgroups_open(NULL, f->root_name, &error);
            struct sp_cgroup *cgroup = sp_cgroup_new(cgroups, box.id);
            const struct sp_cgroup_limits limits = {.memory_bytes = 1 << 26};
            g_assert_true(sp_cgroup_create(cgroup, &limits, &error));
            sp_cgroup_free(cgroup);
            sp_cgroups_free(cgroups);
        }
        if (stage >= 2 && stage < 4)
            g_assert_true(sp_layer_create(f->volume, box.id, 64, SP_SLOT_UID(10), &error));
        if (stage == 3) {
            g_autofree char *lower = g_build_filename(box.run_dir, "lower", NULL);
            g_assert_cmpint(mkdir(lower, 0700), ==, 0);
            int mount = sp_mount_new("tmpfs", NULL, 0, &error);
            g_assert_true(sp_mount_attach(mount, lower, &error));
            close(mount);
        }
        if (stage == 4) { /* the process runs, the record does not know it yet */
            struct sp_instance *instance = f->ops->create(f->driver, &spec, NULL, NULL, &error);
            g_assert_no_error(error);
            int pidfd = fcntl(f->ops->pidfd(instance), F_DUPFD_CLOEXEC, 3);
            f->ops->instance_free(instance);
            g_assert_true(sp_record_save(box.run_dir, &record, &error));
            destroy(f, &box);
            g_assert_true(sp_pidfd_wait(pidfd, 2000));
            close(pidfd);
        }
        g_assert_no_error(error);
        g_assert_null(f->ops->adopt(f->driver, box.run_dir, NULL, &error));
        g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
        destroy(f, &box);
        clear(&box);
    }
}

static void test_failed_create_leaves_nothing(struct fixture *f, gconstpointer data)
{
    struct box box = {0};
    struct sp_driver_spec spec = spec_of(f, &box, 11);
    spec.hostname = "a-name-that-is-longer-than-the-sixty-four-bytes-of-a-host-name-in-linux";
    g_autoptr(GError) error = NULL;
    g_assert_null(f->ops->create(f->driver, &spec, NULL, NULL, &error));
    g_assert_nonnull(error);
    g_assert_nonnull(strstr(error->message, "(hostname a-name"));
    destroy(f, &box);
    /* And a second create() on a living one changes nothing. */
    create(f, &box, 11);
    spec.hostname = "inner";
    g_clear_error(&error);
    g_assert_null(f->ops->create(f->driver, &spec, NULL, NULL, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_CONFLICT);
    expect(f, &box, "status", "0 0 1 inner\n");
    destroy(f, &box);
    clear(&box);
}

/* What kernels before 6.15 need: an attached lower layer, an attached /dev template. */
static void test_attached_ways(struct fixture *f, gconstpointer data)
{
    struct sp_container_driver *driver = (struct sp_container_driver *)f->driver;
    g_autoptr(GError) error = NULL;
    g_atomic_int_set(&driver->layers_need_attach, 1);
    driver->dev = sp_container_dev_new(f->state, f->env.agent_path, true, &error);
    g_assert_no_error(error);
    struct box box = {0};
    create(f, &box, 12);
    expect(f, &box, "cat /home/mine", "mine\n");
    g_autofree char *info = ask(f, &box, "cat /proc/self/mountinfo");
    g_assert_null(strstr(info, f->state));
    g_autofree char *now = mounts();
    g_assert_null(strstr(now, box.run_dir));
    destroy(f, &box);
    clear(&box);
}

static void test_probe_and_prepare(struct fixture *f, gconstpointer data)
{
    struct sp_tier_status status = {0};
    f->ops->probe(f->driver, &status);
    g_test_message("%s", status.detail);
    g_assert_true(status.available);
    g_free(status.detail);
    g_autoptr(GError) error = NULL;
    const struct sp_shape shape = {1, 64, 64, 10};
    for (int i = 0; i < 2; i++)
        g_assert_true(f->ops->prepare(f->driver, f->template_dir, &shape, NULL, NULL, &error));
    g_assert_no_error(error);
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Runs with -m perf. To the first byte of the agent. */
static void test_speed(struct fixture *f, gconstpointer data)
{
    enum { N = 60 };
    int64_t made[N], ready[N], gone[N];
    for (int i = 0; i < N; i++) {
        struct box box = {0};
        int64_t start = sp_time_monotonic_us();
        create(f, &box, 20);
        made[i] = sp_time_monotonic_us() - start;
        expect(f, &box, "status", "0 0 1 inner\n");
        ready[i] = sp_time_monotonic_us() - start;
        start = sp_time_monotonic_us();
        g_assert_true(f->ops->destroy(f->driver, box.run_dir, NULL));
        gone[i] = sp_time_monotonic_us() - start;
        f->ops->instance_free(box.instance);
        clear(&box);
    }
    qsort(made, N, sizeof *made, compare);
    qsort(ready, N, sizeof *ready, compare);
    qsort(gone, N, sizeof *gone, compare);
    g_test_message("create %d/%d us, to the first byte %d/%d us, destroy %d/%d us (p50/p90, n=%d)",
                   (int)made[N / 2], (int)made[N * 9 / 10], (int)ready[N / 2],
                   (int)ready[N * 9 / 10], (int)gone[N / 2], (int)gone[N * 9 / 10], N);
}

static void print_step(void *user, const char *step, int64_t us)
{
    g_string_append_printf(user, " %s %d", step, (int)us);
}

static void test_speed_of_steps(struct fixture *f, gconstpointer data)
{
    for (int i = 0; i < 8; i++) {
        struct box box = {0};
        struct sp_driver_spec spec = spec_of(f, &box, 21);
        GString *text = g_string_new("us:");
        box.instance = f->ops->create(f->driver, &spec, print_step, text, NULL);
        g_assert_nonnull(box.instance);
        g_test_message("%s", text->str);
        g_string_free(text, TRUE);
        destroy(f, &box);
        clear(&box);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && g_str_equal(argv[1], "launcher"))
        return sp_launcher_main(SP_LAUNCHER_FD);
    g_test_init(&argc, &argv, NULL);
    if (geteuid() != 0) {
        g_printerr("NOT TESTED: the container driver needs root\n");
        g_print("1..0 # SKIP NOT TESTED: the container driver needs root\n");
        return 0;
    }
#define ADD(name, function) g_test_add(name, struct fixture, NULL, set_up, function, tear_down)
    ADD("/container/inside", test_inside);
    ADD("/container/mountinfo", test_mountinfo_tells_nothing);
    ADD("/container/attacks", test_attacks_fail);
    ADD("/container/groups", test_groups);
    ADD("/container/two", test_two_are_apart_and_all_processes_end);
    ADD("/container/limits", test_limits);
    ADD("/container/many", test_many_at_once);
    ADD("/container/adopt", test_adopt);
    ADD("/container/half_made", test_half_made);
    ADD("/container/failed_create", test_failed_create_leaves_nothing);
    ADD("/container/attached_ways", test_attached_ways);
    ADD("/container/probe", test_probe_and_prepare);
    if (g_test_perf()) {
        ADD("/container/speed", test_speed);
        ADD("/container/steps", test_speed_of_steps);
    }
    return g_test_run();
}
