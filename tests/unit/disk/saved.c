#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "disk/btrfs.h"
#include "disk/saved.h"
#include "scratch.h"

#define NAME "sbx_01hzy0000000000000000000aa"
#define OTHER "snp_01hzy0000000000000000000bb"
#define HASH "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static struct sp_saved_manifest sample(bool durable)
{
    struct sp_saved_manifest manifest = {
        .sandbox_id = g_strdup(NAME),
        .tier = g_strdup("microvm"),
        .template_digest = g_strdup("sha256:00"),
        .memory = true,
        .durable = durable,
        .cpus = 1.5,
        .memory_mb = 256,
        .disk_mb = 1024,
        .pids = 100,
        .slot = 7,
        .machine = json_pack("{s:s}", "qemu", "7.2"),
    };
    sp_saved_manifest_add(&manifest, "disk", 5, 4096, HASH);
    return manifest;
}

static void put(const char *dir, const char *name, const char *text)
{
    g_autofree char *path = g_build_filename(dir, name, NULL);
    g_autoptr(GError) error = NULL;
    g_file_set_contents(path, text, -1, &error);
    g_assert_no_error(error);
}

/* Everything up to the commit; the caller looks at what it became. */
static bool make(const struct sp_volume *volume, const char *name, bool durable, GError **error)
{
    struct sp_saved_staging *staging = sp_saved_stage(volume, name, 1 << 20, error);
    if (!staging)
        return false;
    put(sp_saved_staging_dir(staging), "disk", "hello");
    struct sp_saved_manifest manifest = sample(durable);
    bool ok = sp_saved_commit(staging, &manifest, error);
    sp_saved_manifest_clear(&manifest);
    sp_saved_staging_free(staging);
    return ok;
}

static unsigned entries(const struct sp_volume *volume, const char *folder)
{
    g_autofree char *path = g_build_filename(sp_volume_dir(volume), folder, NULL);
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    unsigned n = 0;
    for (const char *name; dir && (name = g_dir_read_name(dir));)
        n += name[0] != '.';
    return n;
}

static void check_whole(const struct sp_volume *volume, const char *name)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *dir = sp_saved_path(volume, name);
    g_autofree char *file = g_build_filename(dir, "disk", NULL);
    g_autofree char *text = NULL;
    struct sp_saved_manifest manifest;
    sp_saved_load(dir, &manifest, &error);
    g_assert_no_error(error);
    g_assert_cmpint(sp_saved_manifest_file(&manifest, "disk")->size_bytes, ==, 5);
    sp_saved_manifest_clear(&manifest);
    g_assert_true(g_file_get_contents(file, &text, NULL, NULL));
    g_assert_cmpstr(text, ==, "hello");
}

/* --- the manifest */

static void test_manifest(void)
{
    g_autoptr(GError) error = NULL;
    struct sp_saved_manifest m = sample(true), back;
    size_t len;
    g_autofree char *text = sp_saved_manifest_text(&m, &len);
    sp_saved_manifest_parse(text, len, &back, &error);
    g_assert_no_error(error);
    g_assert_cmpint(back.format, ==, SP_SAVED_FORMAT);
    g_assert_cmpstr(back.sandbox_id, ==, NAME);
    g_assert_cmpstr(back.tier, ==, "microvm");
    g_assert_true(back.memory && back.durable);
    g_assert_cmpfloat(back.cpus, ==, 1.5);
    g_assert_cmpint(back.memory_mb, ==, 256);
    g_assert_cmpint(back.disk_mb, ==, 1024);
    g_assert_cmpint(back.pids, ==, 100);
    g_assert_cmpuint(back.slot, ==, 7);
    g_assert_cmpint(back.created_at_ms, >, 0);
    g_assert_cmpuint(strlen(back.boot_id), ==, 36);
    g_assert_cmpstr(json_string_value(json_object_get(back.machine, "qemu")), ==, "7.2");
    const struct sp_saved_file *file = sp_saved_manifest_file(&back, "disk");
    g_assert_nonnull(file);
    g_assert_cmpstr(file->sha256, ==, HASH);
    g_assert_null(sp_saved_manifest_file(&back, "state"));
    sp_saved_manifest_clear(&back);
    sp_saved_manifest_clear(&m);
}

static void test_every_bit_counts(void)
{
    struct sp_saved_manifest m = sample(true), back;
    size_t len;
    g_autofree char *text = sp_saved_manifest_text(&m, &len);
    sp_saved_manifest_clear(&m);
    for (size_t i = 0; i < len * 8; i++) {
        g_autoptr(GError) error = NULL;
        text[i / 8] = (char)(text[i / 8] ^ (1 << i % 8));
        g_assert_false(sp_saved_manifest_parse(text, len, &back, &error));
        g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
        text[i / 8] = (char)(text[i / 8] ^ (1 << i % 8));
    }
    for (size_t cut = 0; cut < len; cut++)
        g_assert_false(sp_saved_manifest_parse(text, cut, &back, NULL));
}

/* The same text with something replaced, and a hash that fits. */
static void check_refused(const char *from, const char *to, const char *message)
{
    g_autoptr(GError) error = NULL;
    struct sp_saved_manifest m = sample(true), back;
    g_autofree char *text = sp_saved_manifest_text(&m, NULL);
    sp_saved_manifest_clear(&m);
    const char *at = strstr(text, from);
    g_assert_nonnull(at);
    g_autofree char *head = g_strndup(text, (gsize)(at - text));
    g_autofree char *changed = g_strconcat(head, to, at + strlen(from), NULL);
    const char *rest = changed + strlen("{\"sha256\":\"") + 64 + strlen("\",");
    g_autofree char *hash = g_compute_checksum_for_string(G_CHECKSUM_SHA256, rest, -1);
    memcpy(changed + strlen("{\"sha256\":\""), hash, 64);
    g_assert_false(sp_saved_manifest_parse(changed, strlen(changed), &back, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    g_assert_nonnull(strstr(error->message, message));
}

static void test_manifest_refusals(void)
{
    check_refused("\"format\":1", "\"format\":2", "format 2");
    check_refused("\"format\":1", "\"formal\":1", "format 0");
    check_refused("\"slot\":7", "\"slot\":8192", "slot");
    check_refused("\"slot\":7", "\"slot\":-1", "slot");
    check_refused("\"pids\":100", "\"pids\":100,\"more\":1", "more");
    check_refused("\"memory\":true", "\"memory\":1", "memory");
    check_refused("\"name\":\"disk\"", "\"name\":\"../d\"", "files");
    check_refused("\"name\":\"disk\"", "\"name\":\".disk\"", "files");
    check_refused(HASH, "xyz", "files");
    check_refused("\"size_bytes\":5", "\"size_bytes\":-5", "size_bytes");
    check_refused("\"machine\":{\"qemu\":\"7.2\"}", "\"machine\":[]", "machine");
}

/* --- on a volume */

static void test_commit_list_remove(void)
{
    if (!scratch_may_mount())
        return;
    g_autoptr(GError) error = NULL;
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_volume(state);
    g_assert_false(sp_saved_exists(volume, NAME));
    make(volume, NAME, true, &error);
    g_assert_no_error(error);
    check_whole(volume, NAME);
    g_assert_true(sp_saved_exists(volume, NAME));
    g_auto(GStrv) names = sp_saved_list(volume);
    g_assert_cmpuint(g_strv_length(names), ==, 1);
    g_assert_cmpstr(names[0], ==, NAME);
    g_assert_cmpuint(entries(volume, "tmp"), ==, 0);

    g_assert_false(make(volume, NAME, true, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_CONFLICT);
    g_clear_error(&error);
    check_whole(volume, NAME);

    sp_saved_remove(volume, NAME, &error);
    g_assert_no_error(error);
    g_assert_true(sp_saved_remove(volume, NAME, &error));
    g_assert_false(sp_saved_exists(volume, NAME));
    g_assert_cmpuint(entries(volume, "tmp"), ==, 0);
    g_assert_cmpuint(entries(volume, "saved"), ==, 0);
    g_assert_false(sp_saved_remove(volume, "../x", &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST);
    sp_volume_close(volume);
    scratch_end(state);
}

static void test_same_name_at_once(void)
{
    if (!scratch_may_mount())
        return;
    g_autoptr(GError) error = NULL;
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_volume(state);
    struct sp_saved_staging *first = sp_saved_stage(volume, NAME, 0, &error);
    g_assert_no_error(error);
    g_assert_null(sp_saved_stage(volume, NAME, 0, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_CONFLICT);
    g_clear_error(&error);
    /* The refused one has taken nothing away from the first. */
    put(sp_saved_staging_dir(first), "disk", "hello");
    struct sp_saved_manifest manifest = sample(false);
    sp_saved_commit(first, &manifest, &error);
    g_assert_no_error(error);
    sp_saved_manifest_clear(&manifest);
    sp_saved_staging_free(first);
    check_whole(volume, NAME);
    sp_volume_close(volume);
    scratch_end(state);
}

static void test_uncommitted_leaves_nothing(void)
{
    if (!scratch_may_mount())
        return;
    g_autoptr(GError) error = NULL;
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_volume(state);
    struct sp_saved_staging *staging = sp_saved_stage(volume, NAME, 0, &error);
    g_assert_no_error(error);
    put(sp_saved_staging_dir(staging), "disk", "hello");
    sp_saved_staging_free(staging);
    g_assert_cmpuint(entries(volume, "tmp"), ==, 0);
    g_assert_cmpuint(entries(volume, "saved"), ==, 0);
    sp_volume_close(volume);
    scratch_end(state);
}

static void test_no_space(void)
{
    if (!scratch_may_mount())
        return;
    g_autoptr(GError) error = NULL;
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_volume(state);
    g_assert_null(sp_saved_stage(volume, NAME, INT64_C(1) << 40, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_assert_nonnull(strstr(error->message, "MiB are free"));
    g_assert_cmpuint(entries(volume, "tmp"), ==, 0);
    g_clear_error(&error);
    /* A volume that is nearly full. */
    g_autofree char *file = g_build_filename(sp_volume_dir(volume), "tmp", "filler", NULL);
    int failure;
    scratch_fill(file, 440 << 20, &failure);
    g_assert_null(sp_saved_stage(volume, NAME, 100 << 20, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_assert_cmpuint(entries(volume, "tmp"), ==, 1);
    g_assert_cmpint(unlink(file), ==, 0);
    sp_volume_close(volume);
    scratch_end(state);
}

static void test_damage(void)
{
    if (!scratch_may_mount())
        return;
    g_autoptr(GError) error = NULL;
    struct sp_saved_manifest manifest;
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_volume(state);
    g_autofree char *dir = sp_saved_path(volume, NAME);
    g_assert_false(sp_saved_load(dir, &manifest, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
    g_clear_error(&error);
    g_assert_true(make(volume, NAME, true, NULL));
    put(dir, "disk", "hell");
    g_assert_false(sp_saved_load(dir, &manifest, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    g_clear_error(&error);
    put(dir, "disk", "hello");
    check_whole(volume, NAME);
    g_autofree char *path = g_build_filename(dir, SP_SAVED_MANIFEST, NULL);
    g_assert_cmpint(truncate(path, 100), ==, 0);
    g_assert_false(sp_saved_load(dir, &manifest, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    sp_volume_close(volume);
    scratch_end(state);
}

/* A form that need not survive the host is not used after it has been started again. */
static void test_of_another_boot(void)
{
    if (!scratch_may_mount())
        return;
    g_autoptr(GError) error = NULL;
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_volume(state);
    struct sp_saved_staging *staging = sp_saved_stage(volume, NAME, 0, &error);
    g_assert_no_error(error);
    struct sp_saved_manifest manifest = sample(false);
    manifest.boot_id = g_strdup("00000000-0000-0000-0000-000000000000");
    put(sp_saved_staging_dir(staging), "disk", "hello");
    g_assert_true(sp_saved_commit(staging, &manifest, &error));
    sp_saved_manifest_clear(&manifest);
    sp_saved_staging_free(staging);
    g_autofree char *dir = sp_saved_path(volume, NAME);
    g_assert_false(sp_saved_load(dir, &manifest, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    sp_volume_close(volume);
    scratch_end(state);
}

/* A form with a subvolume, as the container tier makes them. */
static void make_with_layer(const struct sp_volume *volume, const char *name, const char *text)
{
    g_autoptr(GError) error = NULL;
    struct sp_saved_staging *staging = sp_saved_stage(volume, name, 0, &error);
    g_assert_no_error(error);
    const char *dir = sp_saved_staging_dir(staging);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    g_assert_cmpint(sp_btrfs_subvolume_create(fd, "layer", 64 << 20), ==, 0);
    close(fd);
    g_autofree char *layer = g_build_filename(dir, "layer", NULL);
    put(layer, "note", text);
    put(dir, "disk", "hello");
    struct sp_saved_manifest manifest = sample(true);
    g_assert_true(sp_saved_commit(staging, &manifest, &error));
    sp_saved_manifest_clear(&manifest);
    sp_saved_staging_free(staging);
}

static void check_note(const struct sp_volume *volume, const char *name, const char *text)
{
    g_autofree char *dir = sp_saved_path(volume, name);
    g_autofree char *path = g_build_filename(dir, "layer", "note", NULL);
    g_autofree char *found = NULL;
    g_assert_true(g_file_get_contents(path, &found, NULL, NULL));
    g_assert_cmpstr(found, ==, text);
}

static void test_copy(void)
{
    if (!scratch_may_mount())
        return;
    g_autoptr(GError) error = NULL;
    struct sp_saved_manifest manifest;
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_volume(state);
    g_assert_false(sp_saved_copy(volume, NAME, OTHER, NULL, true, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
    g_clear_error(&error);
    make_with_layer(volume, NAME, "one");
    sp_saved_copy(volume, NAME, OTHER, "sbx_01hzy0000000000000000000cc", false, &error);
    g_assert_no_error(error);
    /* The copy is whole without its origin. */
    g_assert_true(sp_saved_remove(volume, NAME, &error));
    check_whole(volume, OTHER);
    check_note(volume, OTHER, "one");
    g_autofree char *dir = sp_saved_path(volume, OTHER);
    g_assert_true(sp_saved_load(dir, &manifest, &error));
    g_assert_cmpstr(manifest.sandbox_id, ==, "sbx_01hzy0000000000000000000cc");
    g_assert_false(manifest.durable);
    g_assert_cmpuint(manifest.slot, ==, 7);
    sp_saved_manifest_clear(&manifest);
    /* Over an older one. */
    make_with_layer(volume, NAME, "two");
    sp_saved_copy(volume, NAME, OTHER, NULL, true, &error);
    g_assert_no_error(error);
    check_note(volume, OTHER, "two");
    g_assert_true(sp_saved_remove(volume, OTHER, &error));
    g_assert_true(sp_saved_remove(volume, NAME, &error));
    g_assert_cmpuint(entries(volume, "tmp"), ==, 0);
    g_assert_cmpuint(entries(volume, "saved"), ==, 0);
    sp_volume_close(volume);
    scratch_end(state);
}

static void test_plain_volume(void)
{
    if (!scratch_may_mount())
        return;
    g_autoptr(GError) error = NULL;
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_plain_volume(state);
    make(volume, NAME, true, &error);
    g_assert_no_error(error);
    g_autofree char *dir = sp_saved_path(volume, NAME);
    g_autofree char *layer = g_build_filename(dir, "layer", NULL);
    g_assert_cmpint(mkdir(layer, 0700), ==, 0);
    put(layer, "note", "one");
    sp_saved_copy(volume, NAME, OTHER, NULL, true, &error);
    g_assert_no_error(error);
    g_assert_true(sp_saved_remove(volume, NAME, &error));
    check_whole(volume, OTHER);
    check_note(volume, OTHER, "one");
    g_assert_true(sp_saved_remove(volume, OTHER, &error));
    g_assert_cmpuint(entries(volume, "tmp"), ==, 0);
    sp_volume_close(volume);
    scratch_end(state);
}

/* --- killed at every system call */

enum work { MAKE, COPY_OVER, REMOVE };

static void do_work(const struct sp_volume *volume, enum work work)
{
    bool ok = work == MAKE        ? make(volume, NAME, true, NULL)
              : work == COPY_OVER ? sp_saved_copy(volume, OTHER, NAME, NULL, true, NULL)
                                  : sp_saved_remove(volume, NAME, NULL);
    _exit(ok ? 0 : 1);
}

/* Runs it up to its nth system call and kills it there. True when it had ended before. */
static bool run_to_call(const struct sp_volume *volume, enum work work, unsigned n)
{
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        do_work(volume, work);
    }
    int status;
    g_assert_cmpint(waitpid(child, &status, 0), ==, child);
    for (unsigned i = 0; i < n && !WIFEXITED(status); i++) {
        g_assert_cmpint(ptrace(PTRACE_SYSCALL, child, NULL, NULL), ==, 0);
        g_assert_cmpint(waitpid(child, &status, 0), ==, child);
    }
    if (WIFEXITED(status)) {
        g_assert_cmpint(WEXITSTATUS(status), ==, 0);
        return true;
    }
    kill(child, SIGKILL);
    g_assert_cmpint(waitpid(child, &status, 0), ==, child);
    return false;
}

static void check_killed(enum work work)
{
    char *state = scratch_begin();
    struct sp_volume *volume = scratch_volume(state);
    unsigned present = 0, absent = 0;
    bool ended = false;
    if (work == COPY_OVER)
        make_with_layer(volume, OTHER, "new");
    for (unsigned n = 1; !ended; n++) {
        if (work == REMOVE && !sp_saved_exists(volume, NAME))
            make_with_layer(volume, NAME, "old");
        if (work == COPY_OVER) {
            g_assert_true(sp_saved_remove(volume, NAME, NULL));
            make_with_layer(volume, NAME, "old");
        }
        /* Each try reserves 17 MiB, which Linux 6.1 does not give back for a new file in time. */
        if (n % 8 == 0)
            g_assert_true(sp_volume_reclaim(volume, 10000, NULL));
        ended = run_to_call(volume, work, n);
        sp_saved_clean(volume);
        g_assert_cmpuint(entries(volume, "tmp"), ==, 0);
        bool there = sp_saved_exists(volume, NAME);
        g_assert_cmpuint(entries(volume, "saved"), ==, there + (work == COPY_OVER));
        present += there;
        absent += !there;
        if (there)
            check_whole(volume, NAME);
        if (there && work == MAKE)
            g_assert_true(sp_saved_remove(volume, NAME, NULL));
    }
    g_test_message("killed %u times: there %u, not there %u", present + absent - 1, present,
                   absent);
    g_assert_cmpuint(present, >, 2);
    g_assert_true(work == COPY_OVER ? absent == 0 : absent > 2);
    sp_volume_close(volume);
    scratch_end(state);
}

static void test_killed(void)
{
    if (!scratch_may_mount())
        return;
    check_killed(MAKE);
    check_killed(COPY_OVER);
    check_killed(REMOVE);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/disk/saved/manifest", test_manifest);
    g_test_add_func("/disk/saved/every_bit_counts", test_every_bit_counts);
    g_test_add_func("/disk/saved/manifest_refusals", test_manifest_refusals);
    g_test_add_func("/disk/saved/commit_list_remove", test_commit_list_remove);
    g_test_add_func("/disk/saved/same_name_at_once", test_same_name_at_once);
    g_test_add_func("/disk/saved/uncommitted", test_uncommitted_leaves_nothing);
    g_test_add_func("/disk/saved/no_space", test_no_space);
    g_test_add_func("/disk/saved/damage", test_damage);
    g_test_add_func("/disk/saved/of_another_boot", test_of_another_boot);
    g_test_add_func("/disk/saved/copy", test_copy);
    g_test_add_func("/disk/saved/plain_volume", test_plain_volume);
    g_test_add_func("/disk/saved/killed", test_killed);
    return g_test_run();
}
