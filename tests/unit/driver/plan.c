/* Plans as text against golden files, and their encoding. No system call is made. */
#include <glib.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>

#include "base/error.h"
#include "driver/container/container.h"

/* Set UPDATE_GOLDEN=1 to write the file instead of comparing. */
static void compare_golden(const char *name, const char *text)
{
    g_autofree char *path = g_build_filename(g_getenv("SPACE_GOLDEN_DIR"), name, NULL);
    g_autofree char *want = NULL;
    if (g_getenv("UPDATE_GOLDEN"))
        g_assert_true(g_file_set_contents(path, text, -1, NULL));
    g_assert_true(g_file_get_contents(path, &want, NULL, NULL));
    g_assert_cmpstr(text, ==, want);
}

static const struct sp_driver_spec spec = {
    .id = "sbx_00000000000000000000000000",
    .slot = 2,
    .hostname = "sbx-0",
    .shape = {.cpus = 1, .memory_mb = 512, .disk_mb = 1024, .pids = 100},
};
static const struct sp_container_fds no_fds = {
    .root = -1, .dev = -1, .cgroup = -1, .oom = -1, .seccomp = -1, .has_cgroup = true};

static void test_container(void)
{
    struct sp_plan *plan = sp_container_plan(&spec, &no_fds, 524288);
    g_autofree char *text = sp_plan_dump(plan);
    compare_golden("container.txt", text);
    sp_plan_free(plan);
}

static void test_container_without_cgroup2(void)
{
    struct sp_container_fds fds = no_fds;
    fds.has_cgroup = false;
    struct sp_plan *plan = sp_container_plan(&spec, &fds, 524288);
    g_autofree char *text = sp_plan_dump(plan);
    g_assert_null(strstr(text, "cgroup-fd"));
    g_assert_null(strstr(text, "oom-fd"));
    sp_plan_free(plan);
}

/* Every kind of step once. */
static struct sp_plan *all_steps(void)
{
    struct sp_plan *plan = sp_plan_new("everything");
    sp_plan_namespaces(plan, CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUSER);
    sp_plan_map_ids(plan, 0x50000000, 65536);
    sp_plan_cgroup_dir(plan, "unified", -1);
    sp_plan_cgroup_procs(plan, "memory", -1);
    sp_plan_private_mounts(plan);
    sp_plan_root_tmpfs(plan, "size=1m");
    sp_plan_root_fd(plan, "overlay", -1);
    sp_plan_mkdir(plan, "usr", 0755);
    sp_plan_touch(plan, "null", 0666);
    sp_plan_symlink(plan, "usr/lib", "lib");
    sp_plan_bind(plan, "/usr", "usr", SP_MOUNT_RO | SP_BIND_RECURSIVE | SP_BIND_OPTIONAL);
    sp_plan_attach(plan, "tree", -1, "mnt");
    sp_plan_pivot(plan);
    sp_plan_mount(plan, "proc", "/proc", NULL, SP_MOUNT_NOSUID | SP_MOUNT_NOEXEC);
    sp_plan_mount(plan, "tmpfs", "/run", "mode=755", SP_MOUNT_NODEV);
    sp_plan_drop_old_root(plan);
    sp_plan_remount(plan, "/", SP_MOUNT_RO);
    sp_plan_hostname(plan, "name");
    sp_plan_lo_up(plan);
    sp_plan_cgroup_namespace(plan);
    sp_plan_rlimit(plan, RLIMIT_CORE, 0, RLIM_INFINITY);
    sp_plan_capabilities(plan, 0x401);
    sp_plan_become(plan, 1000, 1001);
    sp_plan_no_new_privs(plan);
    sp_plan_listen(plan, "/run/socket", 9);
    sp_plan_seccomp(plan, "filter", -1);
    sp_plan_pass_fd(plan, "log", -1, 2);
    sp_plan_chdir(plan, "/home");
    sp_plan_exec(plan, "/usr/bin/prog", (const char *const[]){"prog", "-a b", "", NULL},
                 (const char *const[]){"A=1", NULL});
    return plan;
}

static void test_all_steps(void)
{
    struct sp_plan *plan = all_steps();
    g_autofree char *text = sp_plan_dump(plan);
    compare_golden("all_steps.txt", text);
    g_autofree char *step = sp_plan_describe_step(plan, 6);
    g_assert_cmpstr(step, ==, "step 6 (bind /usr at usr ro recursive optional)");
    g_autofree char *beyond = sp_plan_describe_step(plan, 999);
    g_assert_cmpstr(beyond, ==, "step 999");
    sp_plan_free(plan);
}

static void test_decode_is_inverse(void)
{
    struct sp_plan *plan = all_steps();
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    int fds[SP_PLAN_MAX_FDS];
    unsigned n = 0;
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_plan_encode(plan, bytes, fds, &n, &error));
    struct sp_plan *back = sp_plan_decode(bytes->data, bytes->len, fds, n, &error);
    g_assert_no_error(error);
    g_autofree char *a = sp_plan_dump(plan);
    g_autofree char *b = sp_plan_dump(back);
    g_assert_cmpstr(a, ==, b);
    sp_plan_free(plan);
    sp_plan_free(back);
}

/* Cut anywhere, one byte changed anywhere: an error or another plan, never a crash or a wild read.
 */
static void test_decode_hostile(void)
{
    struct sp_plan *plan = all_steps();
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    int fds[SP_PLAN_MAX_FDS];
    unsigned n = 0;
    g_assert_true(sp_plan_encode(plan, bytes, fds, &n, NULL));
    sp_plan_free(plan);
    for (guint len = 0; len < bytes->len; len++) {
        g_autofree char *cut = g_memdup2(bytes->data, len);
        g_assert_null(sp_plan_decode(cut, len, fds, n, NULL));
    }
    g_assert_null(sp_plan_decode(bytes->data, bytes->len, fds, n - 1, NULL));
    for (guint i = 0; i < bytes->len * 4; i++) {
        g_autofree guint8 *changed = g_memdup2(bytes->data, bytes->len);
        changed[i / 4] ^= (guint8)(1u << (i % 4 * 2));
        struct sp_plan *other = sp_plan_decode(changed, bytes->len, fds, n, NULL);
        if (other)
            g_free(sp_plan_dump(other));
        sp_plan_free(other);
    }
}

static void test_too_large(void)
{
    struct sp_plan *plan = sp_plan_new("large");
    g_autofree char *text = g_strnfill(SP_PLAN_MAX_BYTES, 'x');
    sp_plan_exec(plan, "/bin/true", (const char *const[]){"true", text, NULL},
                 (const char *const[]){NULL});
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    int fds[SP_PLAN_MAX_FDS];
    unsigned n = 0;
    g_autoptr(GError) error = NULL;
    g_assert_false(sp_plan_encode(plan, bytes, fds, &n, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST);
    sp_plan_free(plan);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/plan/container", test_container);
    g_test_add_func("/plan/container_without_cgroup2", test_container_without_cgroup2);
    g_test_add_func("/plan/all_steps", test_all_steps);
    g_test_add_func("/plan/decode_is_inverse", test_decode_is_inverse);
    g_test_add_func("/plan/decode_hostile", test_decode_hostile);
    g_test_add_func("/plan/too_large", test_too_large);
    return g_test_run();
}
