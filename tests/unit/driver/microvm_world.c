#include "microvm_world.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "disk/program.h"
#include "disk/tree.h"
#include "os/cgroup.h"

const struct sp_shape test_shape = {.cpus = 1, .memory_mb = 256, .disk_mb = 128, .pids = 100};

static const char *guest_dir(void)
{
    const char *other = g_getenv("SPACE_GUEST_DIR");
    return other ? other : g_getenv("SPACE_TEST_GUEST_DIR");
}

const char *world_missing(void)
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
    g_assert_true(
        g_file_set_contents_full(path, bytes, (gssize)len, G_FILE_SET_CONTENTS_NONE, 0755, NULL));
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
    write_file(
        dir, "config.json",
        "{\"format\":1,\"name\":\"test\",\"user\":\"user\",\"ready\":[\"/bin/tool\",\"true\"]}");
    const char *argv[] = {"mkfs.erofs", "--quiet", image, root, NULL};
    struct sp_program program = {.argv = argv, .timeout_ms = 30000};
    g_autoptr(GError) error = NULL;
    sp_program_run(&program, &error);
    g_assert_no_error(error);
    return dir;
}

static char *copy_template(const char *from, const char *data_dir)
{
    char *dir = g_build_filename(data_dir, "templates", "test", NULL);
    g_autofree char *content = g_strdup_printf("%s/.", from);
    const char *argv[] = {"cp", "-r", content, dir, NULL};
    g_assert_cmpint(g_mkdir_with_parents(dir, 0755), ==, 0);
    struct sp_program program = {.argv = argv, .timeout_ms = 60000};
    g_assert_true(sp_program_run(&program, NULL));
    return dir;
}

void world_join(struct world *w, const char *state_dir)
{
    g_autoptr(GError) error = NULL;
    *w = (struct world){.borrowed = true};
    w->state_dir = g_strdup(state_dir);
    w->cgroup_root = g_path_get_basename(w->state_dir);
    w->launcher = sp_launcher_start("/proc/self/exe", &error);
    g_assert_no_error(error);
    w->volume = sp_volume_open(w->state_dir, UINT64_C(4) << 30, &error);
    g_assert_no_error(error);
    w->template_dir = g_build_filename(sp_volume_dir(w->volume), "templates", "test", NULL);
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

void world_open(struct world *w)
{
    g_autofree char *state_dir = g_dir_make_tmp("space-microvm-XXXXXX", NULL);
    const char *given = g_getenv("SPACE_TEST_TEMPLATE");
    world_join(w, state_dir);
    w->borrowed = false;
    g_free(w->template_dir);
    w->template_dir = given ? copy_template(given, sp_volume_dir(w->volume))
                            : make_template(w->state_dir, sp_volume_dir(w->volume));
}

static void remove_state(struct world *w)
{
    g_autoptr(GError) error = NULL;
    /* The loop device may stay a little longer: other jobs of this machine that make mount
     * namespaces have copies of the mount for a moment. */
    if (!sp_volume_unmount(w->state_dir, &error)) {
        g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
        g_clear_error(&error);
        g_assert_true(sp_volume_unmount(w->state_dir, &error));
    }
    struct sp_cgroups *cgroups = sp_cgroups_open(NULL, w->cgroup_root, &error);
    g_assert_no_error(error);
    g_auto(GStrv) left = sp_cgroups_list(cgroups);
    g_assert_cmpuint(left ? g_strv_length(left) : 0, ==, 0);
    g_assert_true(sp_cgroups_remove_root(cgroups, &error));
    sp_cgroups_free(cgroups);
    g_assert_cmpint(sp_tree_remove(w->state_dir), ==, 0);
}

void world_close(struct world *w)
{
    w->driver->ops->driver_free(w->driver);
    sp_launcher_stop(w->launcher);
    sp_volume_close(w->volume);
    if (!w->borrowed)
        remove_state(w);
    g_free(w->state_dir);
    g_free(w->template_dir);
    g_free(w->cgroup_root);
}

void clone_plan(struct world *w, struct clone *c, const char *id)
{
    *c = (struct clone){0};
    if (id)
        g_strlcpy(c->id, id, sizeof c->id);
    else
        sp_id_new("sbx", c->id);
    c->run_dir = g_build_filename(w->state_dir, c->id, NULL);
    g_assert_cmpint(g_mkdir_with_parents(c->run_dir, 0700), ==, 0);
}

struct sp_driver_spec clone_spec(struct world *w, struct clone *c, unsigned slot)
{
    return (struct sp_driver_spec){
        .id = c->id,
        .name = c->name,
        .run_dir = c->run_dir,
        .template_dir = w->template_dir,
        .template_digest =
            "sha256:0000000000000000000000000000000000000000000000000000000000000000",
        .slot = slot,
        .hostname = "clone",
        .shape = test_shape,
        .saved_dir = c->saved_dir,
        .saved_use = c->use,
    };
}

struct sp_instance *clone_try(struct world *w, struct clone *c, unsigned slot, sp_step_fn step,
                              void *user, GError **error)
{
    struct sp_driver_spec spec = clone_spec(w, c, slot);
    c->instance = w->driver->ops->create(w->driver, &spec, step, user, error);
    return c->instance;
}

void clone_create(struct world *w, struct clone *c, unsigned slot, sp_step_fn step, void *user)
{
    g_autoptr(GError) error = NULL;
    clone_plan(w, c, NULL);
    clone_try(w, c, slot, step, user, &error);
    g_assert_no_error(error);
    g_assert_nonnull(c->instance);
}

char *clone_disk(struct world *w, const struct clone *c)
{
    return g_strdup_printf("%s/layers/%s.disk", sp_volume_dir(w->volume), c->id);
}

void clone_destroy(struct world *w, struct clone *c)
{
    g_autoptr(GError) error = NULL;
    w->driver->ops->destroy(w->driver, c->run_dir, &error);
    g_assert_no_error(error);
    g_clear_pointer(&c->instance, w->driver->ops->instance_free);
    g_clear_pointer(&c->run_dir, g_free);
}

struct sp_boot_talk *clone_talk(struct world *w, struct clone *c)
{
    g_autoptr(GError) error = NULL;
    int fd = w->driver->ops->connect_agent(c->instance, &error);
    g_assert_no_error(error);
    struct sp_boot_talk *talk = sp_boot_talk_new(fd);
    sp_boot_talk_hello(talk, c->id, true, 5000, &error);
    g_assert_no_error(error);
    return talk;
}
