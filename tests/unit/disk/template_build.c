/* What a build leaves when it does not come to its end. (That it does come to its end is shown by
 * the end-to-end tests, which use what it has built.) */
#include "disk/template_build.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"
#include "disk/btrfs.h"
#include "scratch.h"

static struct sp_template_recipe recipe = {
    .name = (char *)"tiny",
    .user = (char *)"user",
    .workdir = (char *)"/workspace",
};

/* Entries of a folder of the volume, but for the lock file. */
static unsigned count_entries(const struct sp_volume *volume, const char *folder)
{
    g_autofree char *path = g_build_filename(sp_volume_dir(volume), folder, NULL);
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    unsigned count = 0;
    const char *name;
    while ((name = g_dir_read_name(dir)) != NULL) {
        count += strcmp(name, ".lock") != 0;
    }
    return count;
}

/* Processes that have the state directory in their arguments. */
static unsigned count_processes(const char *state)
{
    unsigned count = 0;
    g_autoptr(GDir) proc = g_dir_open("/proc", 0, NULL);
    const char *pid;
    while ((pid = g_dir_read_name(proc)) != NULL) {
        g_autofree char *path = g_build_filename("/proc", pid, "cmdline", NULL);
        g_autofree char *text = NULL;
        gsize len;
        if (!g_ascii_isdigit(pid[0]) || !g_file_get_contents(path, &text, &len, NULL)) {
            continue;
        }
        count += memmem(text, len, state, strlen(state)) != NULL;
    }
    return count;
}

static void check_nothing_left(const struct sp_volume *volume, const char *state, unsigned mounts)
{
    for (int i = 0; i < 500 && count_processes(state) > 0; i++) {
        g_usleep(10000);
    }
    g_assert_cmpuint(count_processes(state), ==, 0);
    g_assert_cmpuint(count_entries(volume, "tmp"), ==, 0);
    g_assert_cmpuint(count_entries(volume, "templates"), ==, 0);
    g_assert_cmpuint(scratch_mounts(state), ==, mounts);
}

static void check_time_limit(bool plain)
{
    char *state = scratch_begin();
    struct sp_volume *volume = plain ? scratch_plain_volume(state) : scratch_volume(state);
    unsigned mounts = scratch_mounts(state);
    g_autoptr(GError) error = NULL;
    g_autofree char *digest = NULL;
    int64_t start_ms = sp_time_monotonic_ms();
    g_assert_false(sp_template_build(volume, &recipe, 1500, NULL, NULL, NULL, &digest, &error));
    g_assert_nonnull(error);
    g_assert_null(digest);
    g_assert_cmpint(sp_time_monotonic_ms() - start_ms, <, 30000);
    check_nothing_left(volume, state, mounts);
    sp_volume_close(volume);
    scratch_end(state);
}

static void test_time_limit(void)
{
    if (scratch_may_mount()) {
        check_time_limit(true);
        check_time_limit(false);
    }
}

/* Cancels from inside the progress, at the first line of mmdebstrap. */
static void cancel_on_output(void *cancellable, const char *line)
{
    if (g_str_has_prefix(line, "  I: ") || g_str_has_prefix(line, "  E: ")) {
        g_cancellable_cancel(cancellable);
    }
}

static void test_cancel(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_volume(state);
    g_autoptr(GCancellable) cancellable = g_cancellable_new();
    g_autoptr(GError) error = NULL;
    g_autofree char *digest = NULL;
    g_assert_false(sp_template_build(volume, &recipe, 60000, cancellable, cancel_on_output,
                                     cancellable, &digest, &error));
    g_assert_nonnull(error);
    check_nothing_left(volume, state, 1);
    sp_volume_close(volume);
    scratch_end(state);
}

/* What a killed worker leaves in tmp/ goes at the next start, and only that. */
static void check_clean(bool plain)
{
    char *state = scratch_begin();
    struct sp_volume *volume = plain ? scratch_plain_volume(state) : scratch_volume(state);
    char id[SP_ID_MAX];
    sp_id_new("tpl", id);
    g_autofree char *work = g_build_filename(sp_volume_dir(volume), "tmp", id, NULL);
    g_autofree char *root = g_build_filename(work, "root", NULL);
    g_assert_cmpint(mkdir(work, 0700), ==, 0);
    if (!plain) {
        int fd = open(work, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        g_assert_cmpint(sp_btrfs_subvolume_create(fd, "root", 1 << 30), ==, 0);
        close(fd);
    }
    g_autofree char *deep = g_build_filename(root, "usr", "lib", NULL);
    g_autofree char *link = g_build_filename(deep, "link", NULL);
    g_assert_cmpint(g_mkdir_with_parents(deep, 0755), ==, 0);
    g_assert_cmpint(symlink("/", link), ==, 0);
    g_autofree char *kept = g_build_filename(sp_volume_dir(volume), "tmp", "other", NULL);
    g_assert_cmpint(mkdir(kept, 0700), ==, 0);
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_template_clean(volume, &error));
    g_assert_no_error(error);
    g_assert_false(g_file_test(work, G_FILE_TEST_EXISTS));
    g_assert_true(g_file_test(kept, G_FILE_TEST_EXISTS));
    sp_volume_close(volume);
    scratch_end(state);
}

static void test_clean(void)
{
    if (scratch_may_mount()) {
        check_clean(true);
        check_clean(false);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/template_build/time_limit", test_time_limit);
    g_test_add_func("/template_build/cancel", test_cancel);
    g_test_add_func("/template_build/clean", test_clean);
    return g_test_run();
}
