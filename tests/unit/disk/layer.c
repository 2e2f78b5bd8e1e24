#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/capability.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "disk/layer.h"
#include "scratch.h"

#define ID "sbx_01jd0000000000000000000000"
#define UID 0x50010000u

/* mapped: it holds the ids of inside, and 65536 for the host's root. */
static void check_shape(const char *path, bool mapped)
{
    const struct {
        const char *name;
        mode_t mode;
        uint32_t owner;
    } folders[] = {{"upper", 0755, mapped ? 0 : UID}, {"work", 0700, mapped ? 0x10000 : 0}};
    struct stat st;
    g_assert_cmpint(stat(path, &st), ==, 0);
    g_assert_cmpuint(st.st_mode & 07777, ==, 0700);
    g_assert_cmpuint(st.st_uid, ==, 0);
    for (size_t i = 0; i < G_N_ELEMENTS(folders); i++) {
        g_autofree char *folder = g_build_filename(path, folders[i].name, NULL);
        g_assert_cmpint(stat(folder, &st), ==, 0);
        g_assert_cmpuint(st.st_mode & 07777, ==, folders[i].mode);
        g_assert_cmpuint(st.st_uid, ==, folders[i].owner);
        g_assert_cmpuint(st.st_gid, ==, folders[i].owner);
    }
}

/* The whole life of a layer of either kind; full_errno is how it says that it is full. */
static void check_life(struct sp_volume *volume, int full_errno)
{
    g_autoptr(GError) error = NULL;
    mode_t mask = umask(077); /* the umask must not matter */
    g_assert_true(sp_layer_create(volume, ID, 32, UID, &error));
    umask(mask);
    g_assert_no_error(error);
    g_assert_false(sp_layer_create(volume, ID, 32, UID, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_CONFLICT);
    g_clear_error(&error);
    g_autofree char *path = sp_layer_path(volume, ID);
    check_shape(path, sp_layer_is_mapped(volume));

    g_autofree char *file = g_build_filename(path, "upper", "file", NULL);
    int failure = 0;
    gint64 written = scratch_fill(file, 64 << 20, &failure);
    g_assert_cmpint(failure, ==, full_errno);
    g_assert_cmpint(written, >, 24 << 20);
    g_assert_cmpint(written, <=, 32 << 20);

    g_assert_true(sp_layer_set_limit(volume, ID, 64, &error));
    g_assert_no_error(error);
    g_assert_cmpint(scratch_fill(file, 16 << 20, &failure), ==, 16 << 20);
    g_assert_cmpint(failure, ==, 0);
    g_assert_cmpint(unlink(file), ==, 0); /* works when it is full */

    g_assert_true(sp_layer_destroy(volume, ID, &error));
    g_assert_no_error(error);
    g_assert_false(g_file_test(path, G_FILE_TEST_EXISTS));
    g_assert_true(sp_layer_destroy(volume, ID, &error));
    g_assert_no_error(error);
    g_assert_false(sp_layer_set_limit(volume, ID, 64, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
}

static void test_btrfs_life(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_volume(state);
    check_life(volume, EDQUOT);
    sp_volume_close(volume);
    scratch_end(state);
}

static void test_plain_life(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_plain_volume(state);
    check_life(volume, ENOSPC);
    sp_volume_close(volume);
    scratch_end(state);
}

/* Empty files are bounded as well: by their metadata on btrfs, by nr_inodes on a tmpfs. */
static void check_inodes(struct sp_volume *volume, int full_errno)
{
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_layer_create(volume, ID, 16, UID, &error));
    g_autofree char *path = sp_layer_path(volume, ID);
    int failure = 0;
    unsigned count = 0;
    while (failure == 0 && count < 200000) {
        g_autofree char *file = g_strdup_printf("%s/upper/%u", path, count);
        int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        failure = fd < 0 ? errno : 0;
        if (fd >= 0) {
            close(fd);
            count++;
        }
    }
    g_assert_cmpint(failure, ==, full_errno);
    g_assert_cmpuint(count, >, 500);
    g_test_message("%u empty files in 16 MiB", count);
    g_assert_true(sp_layer_destroy(volume, ID, &error));
}

static void test_inodes(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_plain_volume(state);
    check_inodes(volume, ENOSPC);
    sp_volume_close(volume);
    volume = scratch_volume(state);
    check_inodes(volume, EDQUOT);
    sp_volume_close(volume);
    scratch_end(state);
}

/* Quota groups of level 0 of the file system mounted in dir, as sysfs lists them: "0_<id>". */
static unsigned count_qgroups(const char *state)
{
    unsigned count = 0;
    g_autoptr(GDir) all = g_dir_open("/sys/fs/btrfs", 0, NULL);
    const char *uuid;
    while (all != NULL && (uuid = g_dir_read_name(all)) != NULL) {
        g_autofree char *devices = g_strdup_printf("/sys/fs/btrfs/%s/devices", uuid);
        g_autoptr(GDir) dir = g_dir_open(devices, 0, NULL);
        const char *device = dir != NULL ? g_dir_read_name(dir) : NULL;
        if (device == NULL) {
            continue;
        }
        g_autofree char *attribute = g_strdup_printf("/sys/block/%s/loop/backing_file", device);
        g_autofree char *backing = NULL;
        if (!g_file_get_contents(attribute, &backing, NULL, NULL) ||
            !g_str_has_prefix(backing, state)) {
            continue;
        }
        g_autofree char *qgroups = g_strdup_printf("/sys/fs/btrfs/%s/qgroups", uuid);
        g_autoptr(GDir) groups = g_dir_open(qgroups, 0, NULL);
        const char *name;
        while (groups != NULL && (name = g_dir_read_name(groups)) != NULL) {
            count += g_str_has_prefix(name, "0_");
        }
    }
    return count;
}

static void test_btrfs_returns_everything(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_volume(state);
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_volume_reclaim(volume, 20000, &error));
    uint64_t before = sp_volume_free_bytes(volume);
    unsigned groups_before = count_qgroups(state);
    g_assert_cmpuint(groups_before, >, 0);
    for (int i = 0; i < 4; i++) {
        g_autofree char *id = g_strdup_printf("%s%d", ID, i);
        g_assert_true(sp_layer_create(volume, id, 64, UID, &error));
        g_autofree char *path = sp_layer_path(volume, id);
        g_autofree char *file = g_build_filename(path, "upper", "file", NULL);
        int failure;
        g_assert_cmpint(scratch_fill(file, 40 << 20, &failure), ==, 40 << 20);
    }
    g_assert_cmpuint(count_qgroups(state), ==, groups_before + 4);
    g_assert_cmpuint(sp_volume_free_bytes(volume), <, before - (150 << 20));
    for (int i = 0; i < 4; i++) {
        g_autofree char *id = g_strdup_printf("%s%d", ID, i);
        g_assert_true(sp_layer_destroy(volume, id, &error));
    }
    int64_t start_ms = sp_time_monotonic_ms();
    g_assert_true(sp_volume_reclaim(volume, 20000, &error));
    g_assert_no_error(error);
    g_test_message("reclaimed in %d ms", (int)(sp_time_monotonic_ms() - start_ms));
    g_assert_cmpuint(sp_volume_free_bytes(volume) + (8 << 20), >=, before);
    g_assert_cmpuint(count_qgroups(state), ==, groups_before);
    /* A worker that ends sooner than the kernel is done leaves them to the next one. */
    g_assert_true(sp_layer_create(volume, ID, 64, UID, &error));
    g_autofree char *more = g_build_filename(sp_volume_dir(volume), "layers", ID, "upper/f", NULL);
    int failure;
    g_assert_cmpint(scratch_fill(more, 1 << 20, &failure), ==, 1 << 20);
    g_assert_true(sp_volume_reclaim(volume, 20000, &error));
    g_assert_true(sp_layer_destroy(volume, ID, &error));
    sp_volume_close(volume);
    volume = scratch_volume(state);
    g_assert_true(sp_volume_reclaim(volume, 20000, &error));
    sp_volume_close(volume);
    volume = scratch_volume(state);
    g_assert_cmpuint(count_qgroups(state), ==, groups_before);
    sp_volume_close(volume);
    scratch_end(state);
}

/* Many layers one after the other: how long each step takes is printed, not asserted. */
static void check_speed(struct sp_volume *volume, const char *kind)
{
    enum { ROUNDS = 200 };
    static int64_t create_us[ROUNDS], destroy_us[ROUNDS];
    g_autoptr(GError) error = NULL;
    for (int i = 0; i < ROUNDS; i++) {
        g_autofree char *id = g_strdup_printf("%s%d", ID, i);
        int64_t t0 = sp_time_monotonic_us();
        g_assert_true(sp_layer_create(volume, id, 64, UID, &error));
        int64_t t1 = sp_time_monotonic_us();
        g_assert_true(sp_layer_destroy(volume, id, &error));
        create_us[i] = t1 - t0;
        destroy_us[i] = sp_time_monotonic_us() - t1;
    }
    for (int i = 1; i < ROUNDS; i++) { /* insertion sort */
        for (int j = i; j > 0; j--) {
            int64_t c = create_us[j], d = destroy_us[j];
            if (c < create_us[j - 1]) {
                create_us[j] = create_us[j - 1];
                create_us[j - 1] = c;
            }
            if (d < destroy_us[j - 1]) {
                destroy_us[j] = destroy_us[j - 1];
                destroy_us[j - 1] = d;
            }
        }
    }
    g_test_message("%s: create median %d us, p90 %d us; destroy median %d us, p90 %d us", kind,
                   (int)create_us[ROUNDS / 2], (int)create_us[ROUNDS * 9 / 10],
                   (int)destroy_us[ROUNDS / 2], (int)destroy_us[ROUNDS * 9 / 10]);
    g_autofree char *layers = g_build_filename(sp_volume_dir(volume), "layers", NULL);
    g_autoptr(GDir) dir = g_dir_open(layers, 0, NULL);
    g_assert_null(g_dir_read_name(dir));
}

static void test_many(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_plain_volume(state);
    check_speed(volume, "tmpfs");
    sp_volume_close(volume);
    volume = scratch_volume(state);
    check_speed(volume, "btrfs");
    sp_volume_close(volume);
    scratch_end(state);
}

/* A link in the place of a layer is removed, what it points to is not. */
static void test_destroy_follows_no_link(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    g_autofree char *victim = g_build_filename(state, "victim", NULL);
    g_autofree char *inside = g_build_filename(victim, "file", NULL);
    g_mkdir_with_parents(victim, 0755);
    g_assert_true(g_file_set_contents(inside, "x", -1, NULL));
    for (int plain = 1; plain >= 0; plain--) {
        struct sp_volume *volume = plain ? scratch_plain_volume(state) : scratch_volume(state);
        g_autofree char *path = sp_layer_path(volume, ID);
        g_autoptr(GError) error = NULL;
        g_assert_cmpint(symlink(victim, path), ==, 0);
        g_assert_false(sp_layer_create(volume, ID, 16, UID, &error));
        g_clear_error(&error);
        g_assert_true(sp_layer_destroy(volume, ID, &error));
        g_assert_no_error(error);
        g_assert_false(g_file_test(path, G_FILE_TEST_IS_SYMLINK));
        /* A common directory there, with a link in it, goes as well. */
        g_autofree char *link = g_build_filename(path, "link", NULL);
        g_mkdir_with_parents(path, 0755);
        g_assert_cmpint(symlink(victim, link), ==, 0);
        g_assert_true(sp_layer_destroy(volume, ID, &error));
        g_assert_no_error(error);
        g_assert_false(g_file_test(path, G_FILE_TEST_EXISTS));
        g_assert_true(g_file_test(inside, G_FILE_TEST_EXISTS));
        sp_volume_close(volume);
    }
    scratch_end(state);
}

/* Tries to make a layer without the right to give its folders away. Capabilities belong to the
 * thread. */
static void *create_without_chown(void *volume)
{
    cap_t caps = cap_get_proc();
    cap_value_t lost[] = {CAP_CHOWN};
    g_assert_cmpint(cap_set_flag(caps, CAP_EFFECTIVE, 1, lost, CAP_CLEAR), ==, 0);
    g_assert_cmpint(cap_set_proc(caps), ==, 0);
    cap_free(caps);
    g_autoptr(GError) error = NULL;
    g_assert_false(sp_layer_create(volume, ID, 16, UID, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INTERNAL);
    return NULL;
}

/* When the layer cannot be finished nothing is left of it. */
static void test_failed_create_leaves_nothing(void)
{
    if (!scratch_may_mount()) {
        return;
    }
    char *state = scratch_begin();
    for (int plain = 1; plain >= 0; plain--) {
        struct sp_volume *volume = plain ? scratch_plain_volume(state) : scratch_volume(state);
        unsigned mounts = scratch_mounts(state);
        g_autofree char *path = sp_layer_path(volume, ID);
        g_thread_join(g_thread_new("create", create_without_chown, volume));
        g_assert_false(g_file_test(path, G_FILE_TEST_EXISTS));
        g_assert_cmpuint(scratch_mounts(state), ==, mounts);
        /* And a refusal because there is one takes nothing of that. */
        g_autoptr(GError) error = NULL;
        g_assert_true(sp_layer_create(volume, ID, 16, UID, &error));
        g_assert_false(sp_layer_create(volume, ID, 16, UID, &error));
        g_clear_error(&error);
        check_shape(path, sp_layer_is_mapped(volume));
        g_assert_true(sp_layer_destroy(volume, ID, &error));
        g_assert_cmpuint(scratch_mounts(state), ==, mounts);
        sp_volume_close(volume);
    }
    scratch_end(state);
}

static void test_refuses_bad_ids(void)
{
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_plain_volume(state);
    static const char *const bad[] = {
        "",          ".",  "..",  "a/b",
        "../layers", "-x", "a b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        g_assert_false(sp_layer_create(volume, bad[i], 16, UID, &error));
        g_assert_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST);
        g_clear_error(&error);
        g_assert_false(sp_layer_destroy(volume, bad[i], &error));
        g_assert_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST);
    }
    g_autoptr(GError) error = NULL;
    g_assert_false(sp_layer_create(volume, ID, 0, UID, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST);
    sp_volume_close(volume);
    scratch_end(state);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/layer/btrfs_life", test_btrfs_life);
    g_test_add_func("/layer/plain_life", test_plain_life);
    g_test_add_func("/layer/inodes", test_inodes);
    g_test_add_func("/layer/btrfs_returns_everything", test_btrfs_returns_everything);
    g_test_add_func("/layer/many", test_many);
    g_test_add_func("/layer/destroy_follows_no_link", test_destroy_follows_no_link);
    g_test_add_func("/layer/failed_create_leaves_nothing", test_failed_create_leaves_nothing);
    g_test_add_func("/layer/refuses_bad_ids", test_refuses_bad_ids);
    return g_test_run();
}
