#include "container_world.h"

#include <glib/gstdio.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "disk/image.h"
#include "disk/layer.h"
#include "disk/template.h"
#include "os/pidfd.h"

void run(const char *const *argv)
{
    g_autofree char *err = NULL;
    int status = -1;
    g_assert_true(g_spawn_sync(NULL, (char **)argv, NULL,
                               G_SPAWN_SEARCH_PATH | G_SPAWN_STDOUT_TO_DEV_NULL, NULL, NULL, NULL,
                               &err, &status, NULL));
    if (status)
        g_test_message("%s: %s", argv[0], err);
    g_assert_cmpint(status, ==, 0);
}

char *mounts(void)
{
    g_autofree char *text = NULL;
    g_assert_true(g_file_get_contents("/proc/self/mountinfo", &text, NULL, NULL));
    return g_steal_pointer(&text);
}

/* A tiny image: the directories of a root, one file of root and one of uid 1000. */
static void make_template(struct fixture *f)
{
    g_autofree char *tree = g_build_filename(f->state, "tree", NULL);
    static const char *const dirs[] = {"proc", "dev", "etc", "tmp", "run", "home", "etc/dir", NULL};
    for (const char *const *d = dirs; *d; d++) {
        g_autofree char *path = g_build_filename(tree, *d, NULL);
        g_assert_cmpint(g_mkdir_with_parents(path, 0755), ==, 0);
    }
    g_autofree char *os = g_build_filename(tree, "etc/os", NULL);
    g_autofree char *mine = g_build_filename(tree, "home/mine", NULL);
    g_assert_true(g_file_set_contents(os, "image\n", -1, NULL));
    g_autofree char *gone = g_build_filename(tree, "etc/gone", NULL);
    g_autofree char *x = g_build_filename(tree, "etc/dir/x", NULL);
    g_assert_true(g_file_set_contents(gone, "gone\n", -1, NULL));
    g_assert_true(g_file_set_contents(x, "x\n", -1, NULL));
    g_assert_true(g_file_set_contents(mine, "mine\n", -1, NULL));
    g_assert_cmpint(chown(mine, 1000, 1000), ==, 0);
    f->digest = g_strdup("sha256:00000000000000000000000000000000000000000000000000000000000000ab");
    f->template_dir = sp_template_dir(f->volume, f->digest);
    g_assert_cmpint(g_mkdir_with_parents(f->template_dir, 0755), ==, 0);
    g_autofree char *image = g_build_filename(f->template_dir, "image.erofs", NULL);
    run((const char *const[]){"mkfs.erofs", image, tree, NULL});
}

/* What an ordinary directory is made into when it holds something before the first opening. */
static void make_plain(struct fixture *f)
{
    g_autofree char *data = g_build_filename(f->state, "data", "templates", "x", NULL);
    g_assert_cmpint(g_mkdir_with_parents(data, 0755), ==, 0);
}

void set_up(struct fixture *f, gconstpointer data)
{
    g_autoptr(GError) error = NULL;
    f->host_mounts = mounts();
    /* /var/tmp: the state directory may not be on a tmpfs or overlay whose options matter here. */
    f->state = g_strdup("/var/tmp/space-container-XXXXXX");
    g_assert_nonnull(g_mkdtemp(f->state));
    if (data)
        make_plain(f);
    f->volume = sp_volume_open(f->state, 2048ull << 20, &error);
    g_assert_no_error(error);
    make_template(f);
    f->root_name = g_path_get_basename(f->state);
    f->env = (struct sp_driver_env){
        .state_dir = f->state,
        .cgroup_root = f->root_name,
        .agent_path = g_getenv("SPACE_STANDIN"),
        .launcher = sp_launcher_start("/proc/self/exe", &error),
        .volume = f->volume,
    };
    g_assert_no_error(error);
    g_assert_nonnull(f->env.agent_path);
    g_assert_cmpint(sp_volume_kind(f->volume), ==, data ? SP_VOLUME_PLAIN : SP_VOLUME_BTRFS);
    f->driver = sp_driver_container_new(&f->env, &error);
    g_assert_no_error(error);
    f->ops = f->driver->ops;
}

void tear_down(struct fixture *f, gconstpointer data)
{
    g_autoptr(GError) error = NULL;
    f->ops->driver_free(f->driver); /* waits for the trial of CRIU */
    sp_launcher_stop(f->env.launcher);
    struct sp_cgroups *cgroups = sp_cgroups_open(NULL, f->root_name, &error);
    g_assert_no_error(error);
    g_auto(GStrv) left = sp_cgroups_list(cgroups);
    g_assert_cmpuint(g_strv_length(left), ==, 0);
    g_assert_true(sp_cgroups_remove_root(cgroups, &error));
    sp_cgroups_free(cgroups);
    struct sp_images *images = sp_images_new(f->state);
    g_assert_true(sp_images_unmount(images, NULL, &error));
    g_assert_no_error(error);
    sp_images_free(images);
    sp_volume_close(f->volume);
    g_assert_true(sp_volume_unmount(f->state, &error));
    g_assert_no_error(error);
    g_autofree char *now = mounts();
    bool ours = strstr(now, f->state) != NULL;
    g_assert_false(ours);
    run((const char *const[]){"rm", "-rf", "--one-file-system", f->state, NULL});
    g_free(f->state);
    g_free(f->template_dir);
    g_free(f->digest);
    g_free(f->root_name);
    g_free(f->host_mounts);
}

struct sp_driver_spec spec_of(struct fixture *f, struct box *box, unsigned slot)
{
    if (!box->run_dir) {
        sp_id_new("sbx", box->id);
        /* Longer than sun_path. */
        box->run_dir = g_strdup_printf("%s/run/%060d/%060d/%s", f->state, 0, 0, box->id);
        g_assert_cmpint(g_mkdir_with_parents(box->run_dir, 0700), ==, 0);
    }
    return (struct sp_driver_spec){
        .id = box->id,
        .run_dir = box->run_dir,
        .template_dir = f->template_dir,
        .template_digest = f->digest,
        .slot = slot,
        .hostname = "inner",
        /* What is in a tmpfs counts as memory. */
        .shape = {.cpus = 0.5,
                  .memory_mb = 64,
                  .disk_mb = sp_layer_is_mapped(f->volume) ? 64 : 32,
                  .pids = 20},
    };
}

void create(struct fixture *f, struct box *box, unsigned slot)
{
    struct sp_driver_spec spec = spec_of(f, box, slot);
    g_autoptr(GError) error = NULL;
    box->instance = f->ops->create(f->driver, &spec, NULL, NULL, &error);
    g_assert_no_error(error);
    g_assert_nonnull(box->instance);
}

void clear(struct box *box)
{
    g_free(box->run_dir);
    memset(box, 0, sizeof *box);
}

/* Sends a command to the stand-in agent and returns its whole answer. */
char *ask(struct fixture *f, struct box *box, const char *command)
{
    g_autoptr(GError) error = NULL;
    int fd = f->ops->connect_agent(box->instance, &error);
    g_assert_no_error(error);
    g_assert_cmpint(write(fd, command, strlen(command)), ==, (ssize_t)strlen(command));
    GString *text = g_string_new(NULL);
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        /* A full disk takes its time in an emulated machine. */
        if (poll(&p, 1, 60000) != 1)
            g_error("no answer to \"%s\"", command);
        char buffer[4096];
        ssize_t n = read(fd, buffer, sizeof buffer);
        g_assert_cmpint(n, >=, 0);
        if (n == 0)
            break;
        g_string_append_len(text, buffer, n);
    }
    close(fd);
    return g_string_free(text, FALSE);
}

void expect(struct fixture *f, struct box *box, const char *command, const char *answer)
{
    g_autofree char *text = ask(f, box, command);
    g_assert_cmpstr(text, ==, answer);
}

/* destroy() twice, and then nothing may be left. */
void destroy(struct fixture *f, struct box *box)
{
    g_autoptr(GError) error = NULL;
    for (int i = 0; i < 2; i++) {
        g_assert_true(f->ops->destroy(f->driver, box->run_dir, &error));
        g_assert_no_error(error);
    }
    GDir *dir = g_dir_open(box->run_dir, 0, NULL);
    g_assert_cmpstr(g_dir_read_name(dir), ==, NULL);
    g_dir_close(dir);
    g_autofree char *layer = sp_layer_path(f->volume, box->id);
    g_assert_cmpint(access(layer, F_OK), ==, -1);
    struct sp_cgroups *cgroups = sp_cgroups_open(NULL, f->root_name, &error);
    g_auto(GStrv) groups = sp_cgroups_list(cgroups);
    g_assert_false(g_strv_contains((const char *const *)groups, box->id));
    sp_cgroups_free(cgroups);
    if (box->instance) {
        g_assert_true(sp_pidfd_wait(f->ops->pidfd(box->instance), 0));
        f->ops->instance_free(box->instance);
    }
}
