/* Pause, saved forms and claims of containers. Needs root. */
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/time.h"
#include "container_world.h"
#include "disk/layer.h"
#include "disk/saved.h"
#include "os/pidfd.h"

#define SNAPSHOT "snp_01jd0000000000000000000000"
#define FILLED                                                                                     \
    "gone ok\nopaque ok\n/a ok\nlink ok\nowner ok\nsetuid ok\nxattr ok\nsymlink ok\n"              \
    "symlink owner ok\nfifo ok\nsparse ok\nmoved ok\n"
#define SHOWN                                                                                      \
    "/etc/gone ENOENT\n/home dir 0 0 750 0\n/home/mine ENOENT\n/a file 1000 65535 6755 2\n"        \
    "/home/b file 1000 65535 6755 2\n/etc/sym link 7 8 777 1\n/etc/fifo other 0 0 640 1\n"         \
    "/sparse file 0 0 600 1\n/etc/moved dir 0 0 755 0\n/etc/dir ENOENT\n"                          \
    "/etc/moved/x file 0 0 644 1\nxattr ok\nsame 1 hello\nblocks 1\nlinked\n"

static void pause_box(struct fixture *f, struct box *box)
{
    g_autoptr(GError) error = NULL;
    for (int i = 0; i < 2; i++) {
        g_assert_true(f->ops->pause(box->instance, &error));
        g_assert_no_error(error);
    }
}

static void resume_box(struct fixture *f, struct box *box)
{
    g_autoptr(GError) error = NULL;
    for (int i = 0; i < 2; i++) {
        g_assert_true(f->ops->resume(box->instance, &error));
        g_assert_no_error(error);
    }
}

static gint64 cpu_us(struct fixture *f, struct box *box)
{
    SP_CLEANUP(sp_cgroup_free_p)
    struct sp_cgroup *cgroup = sp_container_cgroup((struct sp_container *)box->instance, NULL);
    struct sp_cgroup_usage usage;
    g_assert_true(sp_cgroup_usage(cgroup, &usage, NULL));
    return usage.cpu_us;
}

/* A later worker: another launcher, another driver, and what it finds. */
static void adopt_again(struct fixture *f, struct box *box, bool paused)
{
    g_autoptr(GError) error = NULL;
    f->ops->instance_free(box->instance);
    f->ops->driver_free(f->driver);
    sp_launcher_stop(f->env.launcher);
    f->env.launcher = sp_launcher_start("/proc/self/exe", &error);
    g_assert_no_error(error);
    f->driver = sp_driver_container_new(&f->env, &error);
    bool found = !paused;
    box->instance = f->ops->adopt(f->driver, box->run_dir, &found, &error);
    g_assert_no_error(error);
    g_assert_cmpint(found, ==, paused);
}

static void test_pause(struct fixture *f, gconstpointer data)
{
    struct box box = {0};
    create(f, &box, 30);
    expect(f, &box, "count", "ok\n");
    g_usleep(50000);
    pause_box(f, &box);
    /* Linux 6.1 says "frozen" shortly before the last process has left its CPU. */
    g_usleep(50000);
    gint64 before = cpu_us(f, &box);
    g_usleep(100000);
    g_assert_cmpint(cpu_us(f, &box), ==, before);
    adopt_again(f, &box, true);
    /* A connection waits in the meantime; the agent answers after the pause. */
    g_autoptr(GError) error = NULL;
    int fd = f->ops->connect_agent(box.instance, &error);
    g_assert_no_error(error);
    close(fd);
    resume_box(f, &box);
    g_usleep(100000);
    g_assert_cmpint(cpu_us(f, &box), >, before);
    expect(f, &box, "status", "0 0 1 inner\n");
    adopt_again(f, &box, false);
    pause_box(f, &box);
    destroy(f, &box);
    clear(&box);
}

/* A group that does not come to a stop is let go again: on folders that only look like cgroups. */
static void test_pause_that_does_not_come(struct fixture *f, gconstpointer data)
{
    struct box box = {0};
    create(f, &box, 31);
    struct sp_container_driver *driver = (struct sp_container_driver *)f->driver;
    struct sp_cgroups *real = driver->cgroups;
    g_autofree char *fake = g_build_filename(f->state, "fake", NULL);
    g_autofree char *group = g_build_filename(fake, "root", box.id, NULL);
    g_autofree char *freeze = g_build_filename(group, "cgroup.freeze", NULL);
    g_autofree char *events = g_build_filename(group, "cgroup.events", NULL);
    g_autofree char *controllers = g_build_filename(fake, "cgroup.controllers", NULL);
    g_autofree char *procs = g_build_filename(fake, "cgroup.procs", NULL);
    g_assert_cmpint(g_mkdir_with_parents(group, 0755), ==, 0);
    g_assert_true(g_file_set_contents(procs, "", -1, NULL));
    g_assert_true(g_file_set_contents(controllers, "cpu memory pids\n", -1, NULL));
    g_assert_true(g_file_set_contents(events, "populated 1\nfrozen 0\n", -1, NULL));
    g_autoptr(GError) error = NULL;
    driver->cgroups = sp_cgroups_open_fake(fake, "root", &error);
    g_assert_no_error(error);
    gint64 start = sp_time_monotonic_ms();
    g_assert_false(f->ops->pause(box.instance, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_test_message("%s", error->message);
    g_assert_cmpint(sp_time_monotonic_ms() - start, <, 5000);
    g_autofree char *text = NULL;
    g_assert_true(g_file_get_contents(freeze, &text, NULL, NULL));
    g_assert_cmpint(text[0], ==, '0');
    sp_cgroups_free(driver->cgroups);
    driver->cgroups = real;
    destroy(f, &box);
    clear(&box);
}

static char *save(struct fixture *f, struct box *box, const char *name, bool memory)
{
    const struct sp_save_spec spec = {.saved_name = name, .memory = memory, .durable = true};
    g_autoptr(GError) error = NULL;
    struct sp_saving *saving = f->ops->save_begin(box->instance, &spec, &error);
    g_assert_no_error(error);
    pause_box(f, box);
    g_assert_true(f->ops->save_capture(saving, &error));
    g_assert_no_error(error);
    struct sp_saved_result result;
    g_assert_true(f->ops->save_finish(saving, &result, NULL, NULL, &error));
    g_assert_no_error(error);
    g_assert_cmpint(result.size_bytes, >=, sp_layer_is_mapped(f->volume) ? 1 : 0);
    f->ops->save_free(saving);
    return sp_saved_path(f->volume, name);
}

static void create_from(struct fixture *f, struct box *box, unsigned slot, const char *saved,
                        enum sp_saved_use use)
{
    struct sp_driver_spec spec = spec_of(f, box, slot);
    spec.saved_dir = saved;
    spec.saved_use = use;
    g_autoptr(GError) error = NULL;
    box->instance = f->ops->create(f->driver, &spec, NULL, NULL, &error);
    g_assert_no_error(error);
}

static void remove_saved(struct fixture *f, const char *name)
{
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_saved_remove(f->volume, name, &error));
    g_assert_no_error(error);
}

/* A tmpfs has them since Linux 6.6. */
static bool tmpfs_has_user_attributes(void)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    g_assert_cmpint(fd, >=, 0);
    bool has = fsetxattr(fd, "user.note", "hello", 5, 0) == 0;
    close(fd);
    return has;
}

/* FILLED or SHOWN, as far as the layer's file system can. */
static void expect_content(struct fixture *f, struct box *box, const char *command,
                           const char *answer)
{
    g_autoptr(GString) text = g_string_new(answer);
    if (!sp_layer_is_mapped(f->volume) && !tmpfs_has_user_attributes()) {
        g_string_replace(text, "xattr ok", "xattr EOPNOTSUPP", 0);
        g_string_replace(text, "same 1 hello", "same 1 ", 0); /* its value */
    }
    expect(f, box, command, text->str);
}

/* One of everything goes through a form into two sandboxes of other slots; the origin goes on. */
static void test_save(struct fixture *f, gconstpointer data)
{
    struct box box = {0}, a = {0}, b = {0};
    create(f, &box, 32);
    expect_content(f, &box, "fill", FILLED);
    expect_content(f, &box, "show", SHOWN);
    g_autofree char *saved = save(f, &box, SNAPSHOT, false);
    resume_box(f, &box);
    expect(f, &box, "write /later", "/later ok\n");
    create_from(f, &a, 33, saved, SP_SAVED_COPY);
    create_from(f, &b, 34, saved, SP_SAVED_COPY);
    destroy(f, &box);
    struct box *const copies[] = {&a, &b};
    for (unsigned i = 0; i < G_N_ELEMENTS(copies); i++) {
        expect_content(f, copies[i], "show", SHOWN);
        expect(f, copies[i], "stat /later", "/later ENOENT\n");
        expect(f, copies[i], "write /mine", "/mine ok\n");
        expect(f, copies[i], "fill-up",
               sp_layer_is_mapped(f->volume) ? "limited EDQUOT\n" : "limited ENOSPC\n");
        expect(f, copies[i], "cat /etc/os", "image\n");
    }
    remove_saved(f, SNAPSHOT); /* nothing of it is needed any more */
    expect_content(f, &a, "show", SHOWN);
    destroy(f, &a);
    destroy(f, &b);
    clear(&box);
    clear(&a);
    clear(&b);
}

/* Of a sandbox that was made from a form; also after a restart of the worker. */
static void test_save_again(struct fixture *f, gconstpointer data)
{
    struct box box = {0}, next = {0};
    create(f, &box, 35);
    expect_content(f, &box, "fill", FILLED);
    adopt_again(f, &box, false);
    for (unsigned i = 0; i < 4; i++) {
        g_autofree char *saved = save(f, &box, SNAPSHOT, false);
        destroy(f, &box);
        clear(&box);
        create_from(f, &next, 36 + i, saved, SP_SAVED_WAKE);
        remove_saved(f, SNAPSHOT);
        expect_content(f, &next, "show", SHOWN);
        box = next;
        next = (struct box){0};
    }
    destroy(f, &box);
    clear(&box);
}

/* What save_free() and a failed create() leave. */
static void test_broken_off(struct fixture *f, gconstpointer data)
{
    struct box box = {0}, other = {0};
    create(f, &box, 40);
    const struct sp_save_spec spec = {.saved_name = SNAPSHOT, .durable = true};
    g_autoptr(GError) error = NULL;
    g_autofree char *tmp = g_build_filename(sp_volume_dir(f->volume), "tmp", NULL);
    for (unsigned i = 0; i < 3; i++) {
        struct sp_saving *saving = f->ops->save_begin(box.instance, &spec, &error);
        g_assert_no_error(error);
        if (i == 1) {
            g_assert_false(f->ops->save_capture(saving, &error)); /* not paused */
            g_clear_error(&error);
        } else if (i == 2) {
            pause_box(f, &box);
            g_assert_true(f->ops->save_capture(saving, &error));
            resume_box(f, &box);
        }
        f->ops->save_free(saving);
        g_assert_false(sp_saved_exists(f->volume, SNAPSHOT));
        GDir *dir = g_dir_open(tmp, 0, NULL);
        g_assert_cmpstr(g_dir_read_name(dir), ==, NULL);
        g_dir_close(dir);
    }
    struct sp_driver_spec from = spec_of(f, &other, 41);
    from.saved_dir = sp_saved_path(f->volume, SNAPSHOT);
    g_assert_null(f->ops->create(f->driver, &from, NULL, NULL, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
    g_clear_error(&error);
    /* A form that lost its layer. */
    g_autofree char *saved = save(f, &box, SNAPSHOT, false);
    resume_box(f, &box);
    g_autofree char *layer = g_build_filename(saved, "layer", NULL);
    g_autofree char *away = g_build_filename(saved, "away", NULL);
    g_assert_cmpint(rename(layer, away), ==, 0);
    g_assert_null(f->ops->create(f->driver, &from, NULL, NULL, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    g_test_message("%s", error->message);
    remove_saved(f, SNAPSHOT);
    g_free((char *)from.saved_dir);
    destroy(f, &other);
    expect(f, &box, "status", "0 0 1 inner\n");
    destroy(f, &box);
    clear(&box);
    clear(&other);
}

/* Adopted and destroyed by the record alone, whatever the names are by now. */
static void test_claim(struct fixture *f, gconstpointer data)
{
    for (unsigned i = 0; i < 4; i++) {
        struct box box = {0};
        struct sp_driver_spec spec = spec_of(f, &box, 42);
        spec.name = "pool-1";
        g_autoptr(GError) error = NULL;
        box.instance = f->ops->create(f->driver, &spec, NULL, NULL, &error);
        g_assert_no_error(error);
        expect(f, &box, "write /mine", "/mine ok\n");
        char id[SP_ID_MAX];
        sp_id_new("sbx", id);
        g_autofree char *run_dir = g_strdup_printf("%s/run/%s", f->state, id);
        if (i == 3) { /* taken by another: nothing changes but the host name */
            g_autofree char *taken = g_build_filename(run_dir, "x", NULL);
            g_assert_cmpint(g_mkdir_with_parents(taken, 0700), ==, 0);
            g_assert_false(f->ops->claim(box.instance, id, run_dir, "claimed", &error));
            g_assert_error(error, SP_ERROR, SP_ERROR_CONFLICT);
            expect(f, &box, "status", "0 0 1 claimed\n");
        } else {
            g_assert_true(f->ops->claim(box.instance, id, run_dir, "claimed", &error));
            g_assert_no_error(error);
            g_assert_false(g_file_test(box.run_dir, G_FILE_TEST_EXISTS));
            g_free(box.run_dir);
            box.run_dir = g_strdup(run_dir);
            g_strlcpy(box.id, id, sizeof box.id);
            expect(f, &box, "status", "0 0 1 claimed\n");
        }
        if (i == 1)
            adopt_again(f, &box, false);
        if (i == 2) { /* and it is saved as what it now is */
            g_autofree char *saved = save(f, &box, SNAPSHOT, false);
            struct sp_saved_manifest manifest;
            g_assert_true(sp_saved_load(saved, &manifest, &error));
            g_assert_cmpstr(manifest.sandbox_id, ==, box.id);
            g_assert_cmpint(manifest.disk_mb, ==, spec.shape.disk_mb);
            sp_saved_manifest_clear(&manifest);
            resume_box(f, &box);
            remove_saved(f, SNAPSHOT);
        }
        expect(f, &box, "cat /mine", "data");
        destroy(f, &box);
        g_autofree char *layer = sp_layer_path(f->volume, "pool-1");
        g_assert_false(g_file_test(layer, G_FILE_TEST_EXISTS));
        clear(&box);
    }
}

/* Subvolumes and quota groups of the volume. */
static unsigned count_groups(struct fixture *f)
{
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_volume_reclaim(f->volume, 60000, &error));
    g_assert_no_error(error);
    g_autofree char *text = NULL;
    g_autofree char *command =
        g_strdup_printf("btrfs subvolume list %s | wc -l; btrfs qgroup show --raw %s | grep -c ^0/",
                        sp_volume_dir(f->volume), sp_volume_dir(f->volume));
    const char *const argv[] = {"/bin/sh", "-c", command, NULL};
    g_assert_true(g_spawn_sync(NULL, (char **)argv, NULL, G_SPAWN_DEFAULT, NULL, NULL, &text, NULL,
                               NULL, NULL));
    unsigned subvolumes = 0, groups = 0;
    g_assert_cmpint(sscanf(text, "%u\n%u", &subvolumes, &groups), ==, 2);
    return subvolumes * 1000 + groups;
}

static void test_nothing_is_left(struct fixture *f, gconstpointer data)
{
    unsigned before = count_groups(f);
    for (unsigned i = 0; i < 100; i++) {
        struct box box = {0};
        create(f, &box, 43);
        g_autofree char *saved = save(f, &box, SNAPSHOT, false);
        destroy(f, &box);
        remove_saved(f, SNAPSHOT);
        clear(&box);
    }
    g_assert_cmpuint(count_groups(f), ==, before);
}

/* Killed between any two steps: destroy() and sp_saved_clean() of a later worker leave nothing. The
 * worker is a child that ends itself. */
static void die_at(struct fixture *f, const struct sp_driver_spec *spec, struct box *box, int step)
{
    g_autoptr(GError) error = NULL;
    if (step < 4) {
        const struct sp_save_spec what = {.saved_name = SNAPSHOT, .durable = true};
        struct sp_saving *saving = f->ops->save_begin(box->instance, &what, &error);
        struct sp_saved_result result;
        if (step >= 1)
            f->ops->pause(box->instance, &error);
        if (step >= 2)
            f->ops->save_capture(saving, &error);
        if (step >= 3)
            f->ops->save_finish(saving, &result, NULL, NULL, &error);
    } else {
        f->ops->create(f->driver, spec, NULL, NULL, &error);
    }
    _exit(error ? 1 : 0);
}

static void test_killed(struct fixture *f, gconstpointer data)
{
    unsigned before = count_groups(f);
    for (int step = 0; step < 5; step++) {
        struct box box = {0}, other = {0};
        create(f, &box, 44);
        g_autofree char *saved = NULL;
        struct sp_driver_spec spec = spec_of(f, &other, 45);
        if (step == 4) {
            spec.saved_dir = saved = save(f, &box, SNAPSHOT, false);
            resume_box(f, &box);
        }
        pid_t pid = fork();
        if (pid == 0)
            die_at(f, &spec, &box, step);
        int status = -1;
        g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
        g_assert_cmpint(status, ==, 0);
        sp_saved_clean(f->volume);
        adopt_again(f, &box, step >= 1 && step < 4);
        g_assert_cmpint(sp_saved_exists(f->volume, SNAPSHOT), ==, step >= 3);
        destroy(f, &box);
        destroy(f, &other);
        remove_saved(f, SNAPSHOT);
        clear(&box);
        clear(&other);
    }
    g_assert_cmpuint(count_groups(f), ==, before);
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void report(const char *what, int64_t *us, int n)
{
    qsort(us, (size_t)n, sizeof *us, compare);
    g_test_message("%s: %d/%d/%d us (min/p50/p90, n=%d)", what, (int)us[0], (int)us[n / 2],
                   (int)us[n * 9 / 10], n);
}

/* Runs with -m perf. */
static void test_speed(struct fixture *f, gconstpointer data)
{
    enum { N = 40 };
    static const char *const names[] = {"pause", "resume", "begin", "capture", "finish", "create"};
    int64_t us[G_N_ELEMENTS(names)][N];
    for (int i = 0; i < N; i++) {
        struct box box = {0}, child = {0};
        create(f, &box, 46);
        g_free(ask(f, &box, "fill"));
        int64_t at[7];
        const struct sp_save_spec spec = {.saved_name = SNAPSHOT, .durable = true};
        struct sp_saved_result result;
        at[0] = sp_time_monotonic_us();
        f->ops->pause(box.instance, NULL);
        at[1] = sp_time_monotonic_us();
        f->ops->resume(box.instance, NULL);
        at[2] = sp_time_monotonic_us();
        struct sp_saving *saving = f->ops->save_begin(box.instance, &spec, NULL);
        at[3] = sp_time_monotonic_us();
        f->ops->pause(box.instance, NULL);
        int64_t start = sp_time_monotonic_us();
        g_assert_true(f->ops->save_capture(saving, NULL));
        at[4] = sp_time_monotonic_us();
        g_assert_true(f->ops->save_finish(saving, &result, NULL, NULL, NULL));
        at[5] = sp_time_monotonic_us();
        f->ops->save_free(saving);
        us[0][i] = at[1] - at[0];
        us[1][i] = at[2] - at[1];
        us[2][i] = at[3] - at[2];
        us[3][i] = at[4] - start;
        us[4][i] = at[5] - at[4];
        g_autofree char *saved = sp_saved_path(f->volume, SNAPSHOT);
        struct sp_driver_spec from = spec_of(f, &child, 47);
        from.saved_dir = saved;
        start = sp_time_monotonic_us();
        child.instance = f->ops->create(f->driver, &from, NULL, NULL, NULL);
        us[5][i] = sp_time_monotonic_us() - start;
        remove_saved(f, SNAPSHOT);
        destroy(f, &box);
        destroy(f, &child);
        clear(&box);
        clear(&child);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++)
        report(names[i], us[i], N);
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
#define ADD(name, function)                                                                        \
    g_test_add("/container_save/" name, struct fixture, NULL, set_up, function, tear_down)
#define ADD_PLAIN(name, function)                                                                  \
    g_test_add("/container_save/plain/" name, struct fixture, "plain", set_up, function, tear_down)
    ADD("pause", test_pause);
    ADD("pause_that_does_not_come", test_pause_that_does_not_come);
    ADD("save", test_save);
    ADD("save_again", test_save_again);
    ADD("broken_off", test_broken_off);
    ADD("claim", test_claim);
    ADD("killed", test_killed);
    ADD("nothing_is_left", test_nothing_is_left);
    ADD_PLAIN("save", test_save);
    ADD_PLAIN("save_again", test_save_again);
    ADD_PLAIN("broken_off", test_broken_off);
    ADD_PLAIN("claim", test_claim);
    if (g_test_perf()) {
        ADD("speed", test_speed);
        ADD_PLAIN("speed", test_speed);
    }
    return g_test_run();
}
