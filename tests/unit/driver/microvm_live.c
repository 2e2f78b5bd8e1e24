/*
 * The microVM tier with real VMs: root, QEMU and the guest kernel are needed; else it says so.
 *
 * SPACE_TEST_GUEST_DIR (vmlinux, modules/), SPACE_TEST_AGENT, SPACE_TEST_GUEST_PROGRAM: set by meson.build.
 * SPACE_GUEST_DIR: another place of the guest kernel.
 * SPACE_TEST_TEMPLATE: a template directory to use instead of a small one made here.
 * SPACE_TEST_BENCH=n: makes n VMs one after the other and prints how long each step took.
 */
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <glib/gstdio.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"
#include "disk/program.h"
#include "disk/tree.h"
#include "disk/volume.h"
#include "driver/driver.h"
#include "driver/launcher.h"
#include "driver/microvm/boot_talk.h"
#include "driver/record.h"
#include "os/cgroup.h"
#include "os/pidfd.h"

#define N_CLONES 3

struct world {
    char *state_dir;
    char *template_dir;
    char *cgroup_root;
    struct sp_launcher *launcher;
    struct sp_volume *volume;
    struct sp_driver_env env;
    struct sp_driver *driver;
};

struct clone {
    char id[SP_ID_MAX];
    char *run_dir;
    struct sp_instance *instance;
};

static const struct sp_shape shape = {.cpus = 1, .memory_mb = 256, .disk_mb = 128, .pids = 100};

static const char *guest_dir(void)
{
    const char *other = g_getenv("SPACE_GUEST_DIR");
    return other ? other : g_getenv("SPACE_TEST_GUEST_DIR");
}

static const char *missing(void)
{
    if (geteuid() != 0)
        return "NOT TESTED: needs root";
    if (!guest_dir() || !g_file_test(guest_dir(), G_FILE_TEST_IS_DIR))
        return "NOT TESTED: no guest kernel (scripts/setup/guest-kernel.sh)";
    g_autofree char *qemu = g_find_program_in_path("qemu-system-x86_64");
    return qemu ? NULL : "NOT TESTED: qemu-system-x86_64 is not installed";
}

static void write_file(const char *dir, const char *name, const char *text)
{
    g_autofree char *path = g_build_filename(dir, name, NULL);
    g_assert_true(g_file_set_contents(path, text, -1, NULL));
}

static void copy_program(const char *from, const char *dir, const char *name)
{
    g_autofree char *path = g_build_filename(dir, name, NULL);
    g_autofree char *bytes = NULL;
    gsize len;
    g_assert_true(g_file_get_contents(from, &bytes, &len, NULL));
    g_assert_true(g_file_set_contents_full(path, bytes, (gssize)len, G_FILE_SET_CONTENTS_NONE, 0755,
                                           NULL));
}

/* A template with one static program. */
static char *make_template(const char *state_dir, const char *data_dir)
{
    g_autofree char *root = g_build_filename(state_dir, "root", NULL);
    g_autofree char *bin = g_build_filename(root, "bin", NULL);
    g_autofree char *etc = g_build_filename(root, "etc", NULL);
    char *dir = g_build_filename(data_dir, "templates", "test", NULL);
    g_autofree char *image = g_build_filename(dir, "image.erofs", NULL);
    g_assert_cmpint(g_mkdir_with_parents(bin, 0755), ==, 0);
    g_assert_cmpint(g_mkdir_with_parents(etc, 0755), ==, 0);
    g_assert_cmpint(g_mkdir_with_parents(dir, 0755), ==, 0);
    write_file(etc, "passwd", "root:x:0:0::/:/bin/tool\nuser:x:1000:1000::/:/bin/tool\n");
    write_file(etc, "group", "root:x:0:\nuser:x:1000:\n");
    copy_program(g_getenv("SPACE_TEST_GUEST_PROGRAM"), bin, "tool");
    write_file(dir, "config.json",
               "{\"format\":1,\"name\":\"test\",\"user\":\"user\",\"ready\":[\"/bin/tool\",\"true\"]}");
    const char *argv[] = {"mkfs.erofs", "--quiet", image, root, NULL};
    struct sp_program program = {.argv = argv, .timeout_ms = 30000};
    g_autoptr(GError) error = NULL;
    sp_program_run(&program, &error);
    g_assert_no_error(error);
    return dir;
}

static void world_open(struct world *w)
{
    g_autoptr(GError) error = NULL;
    *w = (struct world){0};
    w->state_dir = g_dir_make_tmp("space-microvm-XXXXXX", NULL);
    w->cgroup_root = g_path_get_basename(w->state_dir);
    w->launcher = sp_launcher_start("/proc/self/exe", &error);
    g_assert_no_error(error);
    w->volume = sp_volume_open(w->state_dir, UINT64_C(4) << 30, &error);
    g_assert_no_error(error);
    const char *given = g_getenv("SPACE_TEST_TEMPLATE");
    if (given) {
        /* Linked, so that boot images are made in our own volume. */
        w->template_dir = g_build_filename(sp_volume_dir(w->volume), "templates", "test", NULL);
        g_autofree char *command = g_strdup_printf("%s/.", given);
        const char *argv[] = {"cp", "-r", command, w->template_dir, NULL};
        g_assert_cmpint(g_mkdir_with_parents(w->template_dir, 0755), ==, 0);
        struct sp_program program = {.argv = argv, .timeout_ms = 60000};
        g_assert_true(sp_program_run(&program, NULL));
    } else {
        w->template_dir = make_template(w->state_dir, sp_volume_dir(w->volume));
    }
    w->env = (struct sp_driver_env){
        .state_dir = w->state_dir,
        .cgroup_root = w->cgroup_root,
        .agent_path = g_getenv("SPACE_TEST_AGENT"),
        .guest_dir = guest_dir(),
        .launcher = w->launcher,
        .volume = w->volume,
    };
    w->driver = sp_driver_microvm_new(&w->env, &error);
    g_assert_no_error(error);
}

static void world_close(struct world *w)
{
    g_autoptr(GError) error = NULL;
    w->driver->ops->driver_free(w->driver);
    sp_launcher_stop(w->launcher);
    sp_volume_close(w->volume);
    sp_volume_unmount(w->state_dir, &error);
    g_assert_no_error(error);
    struct sp_cgroups *cgroups = sp_cgroups_open(NULL, w->cgroup_root, &error);
    g_assert_no_error(error);
    g_auto(GStrv) left = sp_cgroups_list(cgroups);
    g_assert_cmpuint(left ? g_strv_length(left) : 0, ==, 0);
    g_assert_true(sp_cgroups_remove_root(cgroups, &error));
    sp_cgroups_free(cgroups);
    sp_tree_remove(w->state_dir);
    g_free(w->state_dir);
    g_free(w->template_dir);
    g_free(w->cgroup_root);
}

static void clone_create(struct world *w, struct clone *c, unsigned slot, sp_step_fn step, void *user)
{
    g_autoptr(GError) error = NULL;
    sp_id_new("sbx", c->id);
    c->run_dir = g_build_filename(w->state_dir, c->id, NULL);
    g_assert_cmpint(g_mkdir_with_parents(c->run_dir, 0700), ==, 0);
    struct sp_driver_spec spec = {
        .id = c->id,
        .run_dir = c->run_dir,
        .template_dir = w->template_dir,
        .template_digest =
            "sha256:0000000000000000000000000000000000000000000000000000000000000000",
        .slot = slot,
        .hostname = "clone",
        .shape = shape,
    };
    c->instance = w->driver->ops->create(w->driver, &spec, step, user, &error);
    g_assert_no_error(error);
    g_assert_nonnull(c->instance);
}

static void clone_destroy(struct world *w, struct clone *c)
{
    g_autoptr(GError) error = NULL;
    w->driver->ops->destroy(w->driver, c->run_dir, &error);
    g_assert_no_error(error);
    g_clear_pointer(&c->instance, w->driver->ops->instance_free);
    g_clear_pointer(&c->run_dir, g_free);
}

static struct sp_boot_talk *talk_to(struct world *w, struct clone *c)
{
    g_autoptr(GError) error = NULL;
    int fd = w->driver->ops->connect_agent(c->instance, &error);
    g_assert_no_error(error);
    struct sp_boot_talk *talk = sp_boot_talk_new(fd);
    sp_boot_talk_hello(talk, c->id, true, 5000, &error);
    g_assert_no_error(error);
    return talk;
}

static char *run(struct sp_boot_talk *talk, const char *word, int want_exit)
{
    const char *argv[] = {"/bin/tool", word, NULL};
    g_autoptr(GError) error = NULL;
    GString *output = g_string_new(NULL);
    int exit_code = -2;
    sp_boot_talk_run(talk, argv, "user", 30000, output, &exit_code, &error);
    g_assert_no_error(error);
    g_assert_cmpint(exit_code, ==, want_exit);
    return g_string_free(output, FALSE);
}

static void check_process(struct world *w, struct clone *c, unsigned slot)
{
    struct sp_record record;
    g_assert_true(sp_record_load(c->run_dir, &record, NULL));
    g_assert_true(record.started);
    g_autofree char *path = g_strdup_printf("/proc/%d/status", record.pid);
    g_autofree char *status = NULL;
    g_assert_true(g_file_get_contents(path, &status, NULL, NULL));
    g_autofree char *uid = g_strdup_printf("Uid:\t%u\t%u\t%u\t%u\n", 0x50000000u + slot * 0x10000u,
                                           0x50000000u + slot * 0x10000u,
                                           0x50000000u + slot * 0x10000u,
                                           0x50000000u + slot * 0x10000u);
    g_assert_nonnull(strstr(status, uid));
    g_assert_nonnull(strstr(status, "CapEff:\t0000000000000000\n"));
    g_assert_nonnull(strstr(status, "CapBnd:\t0000000000000000\n"));
    g_assert_nonnull(strstr(status, "NoNewPrivs:\t1\n"));
    g_assert_nonnull(strstr(status, "Seccomp:\t2\n"));
    sp_record_clear(&record);
}

static void test_clones(void)
{
    const char *why_not = missing();
    if (why_not) {
        g_test_skip(why_not);
        return;
    }
    struct world w;
    world_open(&w);
    struct sp_tier_status status;
    w.driver->ops->probe(w.driver, &status);
    g_test_message("tier: %s", status.detail);
    g_assert_true(status.available);
    g_free(status.detail);

    struct clone clones[N_CLONES] = {0};
    char *seen[N_CLONES];
    for (unsigned i = 0; i < N_CLONES; i++)
        clone_create(&w, &clones[i], i + 1, NULL, NULL);
    for (unsigned i = 0; i < N_CLONES; i++) {
        g_autoptr(GError) error = NULL;
        check_process(&w, &clones[i], i + 1);
        struct sp_boot_talk *talk = talk_to(&w, &clones[i]);
        /* Locked until it has an identity. */
        const char *argv[] = {"/bin/tool", "true", NULL};
        g_assert_false(sp_boot_talk_run(talk, argv, "user", 5000, NULL, NULL, &error));
        g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
        g_clear_error(&error);
        g_assert_true(sp_boot_talk_identity(talk, 5000, &error));
        seen[i] = run(talk, "random", 0);
        g_assert_cmpuint(strlen(seen[i]), ==, 32);
        for (unsigned j = 0; j < i; j++)
            g_assert_cmpstr(seen[i], !=, seen[j]);
        g_autofree char *now = run(talk, "time", 0);
        g_assert_cmpint(ABS(atoll(now) - sp_time_now_ms() / 1000), <=, 2);
        sp_boot_talk_free(talk);
    }

    /* A worker that comes back: a fresh driver takes over what runs, without its memory. */
    struct sp_driver *old = w.driver;
    g_autoptr(GError) error = NULL;
    w.driver = sp_driver_microvm_new(&w.env, &error);
    g_assert_no_error(error);
    for (unsigned i = 0; i < N_CLONES; i++) {
        old->ops->instance_free(clones[i].instance);
        clones[i].instance = w.driver->ops->adopt(w.driver, clones[i].run_dir, &error);
        g_assert_no_error(error);
        struct sp_boot_talk *talk = talk_to(&w, &clones[i]);
        g_autofree char *random = run(talk, "random", 0);
        g_assert_cmpstr(random, !=, seen[i]);
        sp_boot_talk_free(talk);
        g_free(seen[i]);
    }
    old->ops->driver_free(old);

    /* The disk's size is the limit; a full disk is an error inside, nothing else. */
    struct sp_boot_talk *talk = talk_to(&w, &clones[0]);
    const char *fill[] = {"/bin/tool", "fill", NULL};
    g_autoptr(GString) output = g_string_new(NULL);
    g_assert_true(sp_boot_talk_run(talk, fill, "root", 60000, output, NULL, &error));
    g_assert_cmpint(atoi(output->str), >, 80);
    g_assert_cmpint(atoi(output->str), <, 128);
    g_autofree char *still = run(talk, "random", 0);
    sp_boot_talk_free(talk);

    /* A dead VMM is proof. */
    struct sp_record record;
    g_assert_true(sp_record_load(clones[1].run_dir, &record, NULL));
    int pidfd = sp_record_open_process(&record, &error);
    g_assert_no_error(error);
    g_assert_true(sp_pidfd_kill(pidfd, 5000, &error));
    close(pidfd);
    sp_record_clear(&record);
    struct pollfd p = {.fd = w.driver->ops->pidfd(clones[1].instance), .events = POLLIN};
    g_assert_cmpint(poll(&p, 1, 5000), ==, 1);
    g_assert_null(w.driver->ops->adopt(w.driver, clones[1].run_dir, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
    g_clear_error(&error);

    for (unsigned i = 0; i < N_CLONES; i++) {
        g_autofree char *run_dir = g_strdup(clones[i].run_dir);
        g_autofree char *disk = g_strdup_printf("%s/layers/%s.disk", sp_volume_dir(w.volume),
                                                clones[i].id);
        g_assert_true(g_file_test(disk, G_FILE_TEST_EXISTS));
        clone_destroy(&w, &clones[i]);
        g_assert_false(g_file_test(disk, G_FILE_TEST_EXISTS));
        g_assert_true(w.driver->ops->destroy(w.driver, run_dir, &error));
    }
    world_close(&w);
}

struct steps {
    GHashTable *times; /* step → GArray of int64_t */
    GPtrArray *order;
};

static void add_time(void *user, const char *step, int64_t us)
{
    struct steps *steps = user;
    GArray *list = g_hash_table_lookup(steps->times, step);
    if (!list) {
        list = g_array_new(FALSE, FALSE, sizeof(int64_t));
        g_hash_table_insert(steps->times, g_strdup(step), list);
        g_ptr_array_add(steps->order, g_strdup(step));
    }
    g_array_append_val(list, us);
}

static gint by_value(gconstpointer a, gconstpointer b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void bench(unsigned n)
{
    struct world w;
    struct steps steps = {
        .times = g_hash_table_new(g_str_hash, g_str_equal),
        .order = g_ptr_array_new(),
    };
    world_open(&w);
    int64_t start_us = sp_time_monotonic_us();
    struct sp_tier_status status;
    w.driver->ops->probe(w.driver, &status);
    printf("probe %.0f ms: %s\n", (double)(sp_time_monotonic_us() - start_us) / 1e3, status.detail);
    start_us = sp_time_monotonic_us();
    g_autoptr(GError) error = NULL;
    w.driver->ops->prepare(w.driver, w.template_dir, &shape, NULL, NULL, &error);
    g_assert_no_error(error);
    printf("prepare %.0f ms\n", (double)(sp_time_monotonic_us() - start_us) / 1e3);
    for (unsigned i = 0; i < n; i++) {
        struct clone c = {0};
        start_us = sp_time_monotonic_us();
        clone_create(&w, &c, i, add_time, &steps);
        add_time(&steps, "= create", sp_time_monotonic_us() - start_us);
        start_us = sp_time_monotonic_us();
        struct sp_boot_talk *talk = talk_to(&w, &c);
        add_time(&steps, "  hello", sp_time_monotonic_us() - start_us);
        start_us = sp_time_monotonic_us();
        g_assert_true(sp_boot_talk_identity(talk, 5000, NULL));
        add_time(&steps, "  identity", sp_time_monotonic_us() - start_us);
        start_us = sp_time_monotonic_us();
        const char *argv[] = {"/bin/true", NULL};
        sp_boot_talk_run(talk, argv, NULL, 5000, NULL, NULL, NULL);
        add_time(&steps, "  first /bin/true", sp_time_monotonic_us() - start_us);
        start_us = sp_time_monotonic_us();
        const char *python[] = {"python3", "-c", "1", NULL};
        sp_boot_talk_run(talk, python, NULL, 5000, NULL, NULL, NULL);
        add_time(&steps, "  first python3", sp_time_monotonic_us() - start_us);
        sp_boot_talk_free(talk);
        start_us = sp_time_monotonic_us();
        clone_destroy(&w, &c);
        add_time(&steps, "= destroy", sp_time_monotonic_us() - start_us);
    }
    printf("%-18s %8s %8s %8s ms\n", "step", "min", "median", "p90");
    for (unsigned i = 0; i < steps.order->len; i++) {
        GArray *list = g_hash_table_lookup(steps.times, steps.order->pdata[i]);
        g_array_sort(list, by_value);
        printf("%-18s %8.1f %8.1f %8.1f\n", (char *)steps.order->pdata[i],
               (double)g_array_index(list, int64_t, 0) / 1e3,
               (double)g_array_index(list, int64_t, list->len / 2) / 1e3,
               (double)g_array_index(list, int64_t, list->len * 9 / 10) / 1e3);
    }
    world_close(&w);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "launcher") == 0)
        return sp_launcher_main(SP_LAUNCHER_FD);
    if (g_getenv("SPACE_TEST_BENCH")) {
        bench((unsigned)atoi(g_getenv("SPACE_TEST_BENCH")));
        return 0;
    }
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/microvm/live/clones", test_clones);
    return g_test_run();
}
