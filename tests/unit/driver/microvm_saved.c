/*
 * Pausing, saving, waking and copying real VMs; as microvm_live, it says so where it cannot run.
 */
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "base/time.h"
#include "disk/saved.h"
#include "disk/tree.h"
#include "driver/record.h"
#include "microvm_world.h"
#include "os/pidfd.h"

#define SNAPSHOT "snp_01hzy0000000000000000000aa"

static bool skip(void)
{
    const char *why_not = world_missing();
    if (why_not)
        g_test_skip(why_not);
    return why_not != NULL;
}

static char *ask(struct sp_boot_talk *talk, const char *word, const char *a, const char *b)
{
    const char *argv[] = {"/bin/tool", word, a, b, NULL};
    g_autoptr(GError) error = NULL;
    GString *output = g_string_new(NULL);
    int exit_code = -2;
    sp_boot_talk_run(talk, argv, "root", 30000, output, &exit_code, &error);
    g_assert_no_error(error);
    if (exit_code != 0)
        g_test_message("%s: exit code %d: %s", word, exit_code, output->str);
    g_assert_cmpint(exit_code, ==, 0);
    return g_string_free(output, FALSE);
}

/* What the counter in the guest says of itself. */
struct counter {
    int pid;
    unsigned long count;
};

static struct counter look(struct sp_boot_talk *talk)
{
    struct counter c;
    char blob[8];
    g_autofree char *text = ask(talk, "ask", NULL, NULL);
    g_assert_cmpint(sscanf(text, "%d %lu %7s", &c.pid, &c.count, blob), ==, 3);
    g_assert_cmpstr(blob, ==, "same");
    return c;
}

static struct sp_boot_talk *identify(struct world *w, struct clone *c)
{
    g_autoptr(GError) error = NULL;
    struct sp_boot_talk *talk = clone_talk(w, c);
    sp_boot_talk_identity(talk, 10000, &error);
    g_assert_no_error(error);
    return talk;
}

static void start_counter(struct sp_boot_talk *talk)
{
    const char *argv[] = {"/bin/tool", "counter", NULL};
    g_autoptr(GError) error = NULL;
    sp_boot_talk_start(talk, "counter", argv, "root", 5000, &error);
    g_assert_no_error(error);
}

/* A VM with a counter, a blob of 8 MiB in its memory and files that nobody has synced. */
static struct sp_boot_talk *make_origin(struct world *w, struct clone *c, unsigned slot,
                                        char **ret_files)
{
    clone_create(w, c, slot, NULL, NULL);
    struct sp_boot_talk *talk = identify(w, c);
    start_counter(talk);
    char *files = ask(talk, "write", NULL, NULL);
    if (ret_files)
        *ret_files = files;
    else
        g_free(files);
    return talk;
}

static bool save(struct world *w, struct clone *c, struct sp_boot_talk *talk, const char *name,
                 bool memory, bool durable, GError **error)
{
    const struct sp_driver_ops *ops = w->driver->ops;
    struct sp_save_spec spec = {.saved_name = name, .memory = memory, .durable = durable};
    struct sp_saved_result result = {0};
    GError *hold = NULL;
    struct sp_saving *saving = ops->save_begin(c->instance, &spec, error);
    if (!saving)
        return false;
    sp_boot_talk_hold(talk, !memory, 10000, &hold);
    g_assert_no_error(hold);
    bool ok = ops->pause(c->instance, error) && ops->save_capture(saving, error) &&
              ops->save_finish(saving, &result, NULL, NULL, error);
    ops->save_free(saving);
    g_assert_true(!ok || result.size_bytes >= 0);
    return ok;
}

static void go_on(struct world *w, struct clone *c, struct sp_boot_talk *talk)
{
    g_autoptr(GError) error = NULL;
    w->driver->ops->resume(c->instance, &error);
    g_assert_no_error(error);
    sp_boot_talk_release(talk, 10000, &error);
    g_assert_no_error(error);
}

static void must_save(struct world *w, struct clone *c, struct sp_boot_talk *talk, const char *name,
                      bool memory, bool durable)
{
    g_autoptr(GError) error = NULL;
    save(w, c, talk, name, memory, durable, &error);
    g_assert_no_error(error);
}

/* Another one from a saved form. */
static void make_from(struct world *w, struct clone *c, const char *name, enum sp_saved_use use,
                      unsigned slot)
{
    g_autoptr(GError) error = NULL;
    clone_plan(w, c, NULL);
    c->saved_dir = sp_saved_path(w->volume, name);
    c->use = use;
    clone_try(w, c, slot, NULL, NULL, &error);
    g_assert_no_error(error);
    g_assert_nonnull(c->instance);
    g_clear_pointer((char **)&c->saved_dir, g_free);
}

static void refuse_from(struct world *w, const char *name, const char *message)
{
    g_autoptr(GError) error = NULL;
    struct clone c;
    clone_plan(w, &c, NULL);
    g_autofree char *dir = sp_saved_path(w->volume, name);
    for (unsigned use = SP_SAVED_WAKE; use <= SP_SAVED_COPY; use++) {
        c.saved_dir = dir;
        c.use = use;
        w->driver->ops->forget_saved(w->driver, dir); /* a form is verified once for all its copies */
        g_assert_null(clone_try(w, &c, 9, NULL, NULL, &error));
        g_test_message("refused: %s", error->message);
        g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
        g_assert_nonnull(strstr(error->message, message));
        g_clear_error(&error);
    }
    clone_destroy(w, &c);
}

static unsigned entries(struct world *w, const char *folder)
{
    g_autofree char *path = g_build_filename(sp_volume_dir(w->volume), folder, NULL);
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    unsigned n = 0;
    for (const char *name; dir && (name = g_dir_read_name(dir));)
        n += name[0] != '.';
    return n;
}

static void check_nothing_left(struct world *w)
{
    g_assert_cmpuint(entries(w, "layers"), ==, 0);
    g_assert_cmpuint(entries(w, "saved"), ==, 0);
    g_assert_cmpuint(entries(w, "tmp"), ==, 0);
    world_close(w);
}

static void remove_saved(struct world *w, const char *name)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *dir = sp_saved_path(w->volume, name);
    w->driver->ops->forget_saved(w->driver, dir);
    sp_saved_remove(w->volume, name, &error);
    g_assert_no_error(error);
}

/* --- pause --- */

static void check_adopted_paused(struct world *w, struct clone *c, bool wanted)
{
    g_autoptr(GError) error = NULL;
    bool paused = !wanted;
    w->driver->ops->instance_free(c->instance);
    c->instance = w->driver->ops->adopt(w->driver, c->run_dir, &paused, &error);
    g_assert_no_error(error);
    g_assert_cmpint(paused, ==, wanted);
}

static void test_pause(void)
{
    if (skip())
        return;
    struct world w;
    struct clone c;
    world_open(&w);
    const struct sp_driver_ops *ops = w.driver->ops;
    struct sp_boot_talk *talk = make_origin(&w, &c, 1, NULL);
    struct counter before = look(talk);
    g_assert_true(ops->resume(c.instance, NULL));
    g_assert_true(sp_boot_talk_hold(talk, false, 5000, NULL));
    g_assert_true(ops->pause(c.instance, NULL));
    g_assert_true(ops->pause(c.instance, NULL));
    check_adopted_paused(&w, &c, true);
    g_usleep(1000000);
    g_assert_true(ops->resume(c.instance, NULL));
    g_assert_true(ops->resume(c.instance, NULL));
    check_adopted_paused(&w, &c, false);
    g_assert_true(sp_boot_talk_release(talk, 5000, NULL));
    struct counter after = look(talk);
    g_assert_cmpint(after.pid, ==, before.pid);
    g_assert_cmpuint(after.count, >=, before.count);
    g_assert_cmpuint(after.count, <, before.count + 90); /* it stood still for a second */
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    check_nothing_left(&w);
}

/* A machine that stands still because of something else is not made to run. */
static void test_ended(void)
{
    if (skip())
        return;
    struct world w;
    struct clone c;
    g_autoptr(GError) error = NULL;
    world_open(&w);
    clone_create(&w, &c, 1, NULL, NULL);
    struct sp_record record;
    g_assert_true(sp_record_load(c.run_dir, &record, NULL));
    g_assert_cmpint(kill(record.pid, SIGKILL), ==, 0);
    sp_record_clear(&record);
    g_assert_true(sp_pidfd_wait(w.driver->ops->pidfd(c.instance), 5000));
    g_assert_false(w.driver->ops->pause(c.instance, &error));
    g_assert_nonnull(error);
    g_clear_error(&error);
    struct sp_save_spec spec = {.saved_name = SNAPSHOT, .memory = true};
    g_assert_null(w.driver->ops->save_begin(c.instance, &spec, &error));
    g_assert_nonnull(error);
    clone_destroy(&w, &c);
    check_nothing_left(&w);
}

/* --- suspend and wake --- */

static void test_cycles(void)
{
    if (skip())
        return;
    struct world w;
    struct clone c;
    char *files;
    world_open(&w);
    g_assert_true(w.driver->ops->can_save_memory(w.driver, NULL));
    struct sp_boot_talk *talk = make_origin(&w, &c, 1, &files);
    struct counter before = look(talk);
    for (unsigned i = 0; i < 5; i++) {
        must_save(&w, &c, talk, SNAPSHOT, true, true);
        sp_boot_talk_free(talk);
        clone_destroy(&w, &c);
        g_assert_cmpuint(entries(&w, "layers"), ==, 0);
        if (i == 2) { /* another worker wakes it, with nothing in its memory */
            w.driver->ops->driver_free(w.driver);
            w.driver = sp_driver_microvm_new(&w.env, NULL);
        }
        make_from(&w, &c, SNAPSHOT, SP_SAVED_WAKE, 1 + i);
        remove_saved(&w, SNAPSHOT);
        talk = identify(&w, &c);
        struct counter now = look(talk);
        g_assert_cmpint(now.pid, ==, before.pid);
        g_assert_cmpuint(now.count, >=, before.count);
        g_assert_cmpuint(now.count, <, before.count + 1000);
        before = now;
        g_autofree char *same = ask(talk, "check", NULL, NULL);
        g_assert_cmpstr(same, ==, files);
        g_free(files);
        files = ask(talk, "write", NULL, NULL);
    }
    g_free(files);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    check_nothing_left(&w);
}

/* A snapshot: the origin goes on, and is not disturbed by the form or its removal. */
static void test_origin_goes_on(void)
{
    if (skip())
        return;
    struct world w;
    struct clone c;
    char *files;
    world_open(&w);
    struct sp_boot_talk *talk = make_origin(&w, &c, 1, &files);
    struct counter before = look(talk);
    must_save(&w, &c, talk, SNAPSHOT, true, false);
    go_on(&w, &c, talk);
    struct counter after = look(talk);
    g_assert_cmpint(after.pid, ==, before.pid);
    /* The same name again. */
    g_autoptr(GError) error = NULL;
    g_assert_false(save(&w, &c, talk, SNAPSHOT, true, false, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_CONFLICT);
    go_on(&w, &c, talk);
    remove_saved(&w, SNAPSHOT);
    g_autofree char *same = ask(talk, "check", NULL, NULL);
    g_assert_cmpstr(same, ==, files);
    g_free(files);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    check_nothing_left(&w);
}

/* Not captured, or given up at some point: nothing stays, the VM runs on. */
static void test_given_up(void)
{
    if (skip())
        return;
    struct world w;
    struct clone c;
    g_autoptr(GError) error = NULL;
    world_open(&w);
    const struct sp_driver_ops *ops = w.driver->ops;
    struct sp_boot_talk *talk = make_origin(&w, &c, 1, NULL);
    struct sp_save_spec spec = {.saved_name = SNAPSHOT, .memory = true, .durable = true};
    struct sp_saved_result result;
    for (unsigned i = 0; i < 3; i++) {
        struct sp_saving *saving = ops->save_begin(c.instance, &spec, &error);
        g_assert_no_error(error);
        if (i == 1) { /* it runs */
            g_assert_false(ops->save_capture(saving, &error));
            g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
            g_clear_error(&error);
            g_assert_false(ops->save_finish(saving, &result, NULL, NULL, &error));
            g_clear_error(&error);
        }
        if (i == 2) {
            g_assert_true(ops->pause(c.instance, NULL));
            g_assert_true(ops->save_capture(saving, NULL));
        }
        ops->save_free(saving);
        g_assert_cmpuint(entries(&w, "tmp"), ==, 0);
        g_assert_cmpuint(entries(&w, "saved"), ==, 0);
    }
    g_assert_true(ops->resume(c.instance, NULL));
    look(talk);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    check_nothing_left(&w);
}

/* --- copies --- */

#define N_COPIES 3

static void test_copies(void)
{
    if (skip())
        return;
    struct world w;
    struct clone c, copies[N_COPIES], again;
    char *files;
    world_open(&w);
    struct sp_boot_talk *talk = make_origin(&w, &c, 1, &files);
    struct counter origin = look(talk);
    must_save(&w, &c, talk, SNAPSHOT, true, false);
    go_on(&w, &c, talk);
    g_autofree char *seen = ask(talk, "random", NULL, NULL);
    sp_boot_talk_free(talk);
    for (unsigned i = 0; i < N_COPIES; i++) {
        make_from(&w, &copies[i], SNAPSHOT, SP_SAVED_COPY, 2 + i);
        talk = identify(&w, &copies[i]);
        struct counter now = look(talk);
        g_assert_cmpint(now.pid, ==, origin.pid);
        g_assert_cmpuint(now.count, >=, origin.count);
        g_autofree char *same = ask(talk, "check", NULL, NULL);
        g_assert_cmpstr(same, ==, files);
        g_autofree char *random = ask(talk, "random", NULL, NULL);
        g_assert_cmpstr(random, !=, seen);
        sp_boot_talk_free(talk);
    }
    /* A copy writes files of its own and is saved, when its snapshot, its boot image and the origin
     * are gone; then it wakes in a worker that knows nothing. */
    remove_saved(&w, SNAPSHOT);
    clone_destroy(&w, &c);
    g_autofree char *images = g_build_filename(w.template_dir, "vm", NULL);
    g_assert_cmpint(sp_tree_remove(images), ==, 0);
    talk = clone_talk(&w, &copies[0]);
    g_free(files);
    files = ask(talk, "write", NULL, NULL);
    struct counter before = look(talk);
    must_save(&w, &copies[0], talk, SNAPSHOT, true, true);
    sp_boot_talk_free(talk);
    for (unsigned i = 0; i < N_COPIES; i++)
        clone_destroy(&w, &copies[i]);
    w.driver->ops->driver_free(w.driver);
    w.driver = sp_driver_microvm_new(&w.env, NULL);
    for (unsigned use = SP_SAVED_WAKE; use <= SP_SAVED_COPY; use++) {
        make_from(&w, &again, SNAPSHOT, use, 7);
        talk = identify(&w, &again);
        struct counter now = look(talk);
        g_assert_cmpint(now.pid, ==, before.pid);
        g_assert_cmpuint(now.count, >=, before.count);
        g_autofree char *same = ask(talk, "check", NULL, NULL);
        g_assert_cmpstr(same, ==, files);
        sp_boot_talk_free(talk);
        clone_destroy(&w, &again);
    }
    g_free(files);
    remove_saved(&w, SNAPSHOT);
    check_nothing_left(&w);
}

/* --- only the disk --- */

static void test_disk_only(void)
{
    if (skip())
        return;
    struct world w;
    struct clone c, copy;
    char *files;
    world_open(&w);
    struct sp_boot_talk *talk = make_origin(&w, &c, 1, &files);
    must_save(&w, &c, talk, SNAPSHOT, false, true); /* HOLD has synced */
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    make_from(&w, &c, SNAPSHOT, SP_SAVED_WAKE, 2);
    remove_saved(&w, SNAPSHOT);
    talk = identify(&w, &c);
    g_autofree char *same = ask(talk, "check", NULL, NULL);
    g_assert_cmpstr(same, ==, files);
    /* It has booted; it can be saved with memory, without any boot image under it. */
    start_counter(talk);
    struct counter before = look(talk);
    must_save(&w, &c, talk, SNAPSHOT, true, true);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    for (unsigned use = SP_SAVED_WAKE; use <= SP_SAVED_COPY; use++) {
        make_from(&w, &copy, SNAPSHOT, use, 3);
        talk = identify(&w, &copy);
        struct counter now = look(talk);
        g_assert_cmpint(now.pid, ==, before.pid);
        sp_boot_talk_free(talk);
        clone_destroy(&w, &copy);
    }
    g_free(files);
    remove_saved(&w, SNAPSHOT);
    check_nothing_left(&w);
}

/* --- refusals --- */

static void flip(const char *dir, const char *name)
{
    g_autofree char *path = g_build_filename(dir, name, NULL);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    g_assert_cmpint(fd, >=, 0);
    off_t at = lseek(fd, 0, SEEK_DATA);
    char byte;
    g_assert_cmpint(pread(fd, &byte, 1, at + 100), ==, 1);
    byte ^= 4;
    g_assert_cmpint(pwrite(fd, &byte, 1, at + 100), ==, 1);
    close(fd);
}

/* The manifest with something else in `machine`, and a hash that fits. */
static void edit_machine(const char *dir, const char *key, json_t *value)
{
    struct sp_saved_manifest manifest;
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_saved_load(dir, &manifest, &error));
    json_object_set_new(manifest.machine, key, value);
    size_t len;
    g_autofree char *text = sp_saved_manifest_text(&manifest, &len);
    g_autofree char *path = g_build_filename(dir, SP_SAVED_MANIFEST, NULL);
    g_assert_true(g_file_set_contents(path, text, (gssize)len, NULL));
    sp_saved_manifest_clear(&manifest);
}

static void check_refused_machine(struct world *w, const char *dir, const char *key, json_t *other,
                                  const char *message)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *path = g_build_filename(dir, SP_SAVED_MANIFEST, NULL);
    g_autofree char *good = NULL;
    gsize len;
    g_assert_true(g_file_get_contents(path, &good, &len, NULL));
    edit_machine(dir, key, other);
    g_assert_false(w->driver->ops->check_saved(w->driver, dir, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    g_assert_nonnull(strstr(error->message, message));
    refuse_from(w, SNAPSHOT, message);
    g_assert_true(g_file_set_contents(path, good, (gssize)len, NULL));
    g_clear_error(&error);
    g_assert_true(w->driver->ops->check_saved(w->driver, dir, NULL));
}

static void test_refusals(void)
{
    if (skip())
        return;
    struct world w;
    struct clone c;
    world_open(&w);
    struct sp_boot_talk *talk = make_origin(&w, &c, 1, NULL);
    struct counter before = look(talk);
    must_save(&w, &c, talk, SNAPSHOT, true, true);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    g_autofree char *dir = sp_saved_path(w.volume, SNAPSHOT);
    check_refused_machine(&w, dir, "qemu_version", json_string("6.0 other"), "6.0 other");
    check_refused_machine(&w, dir, "accel", json_string("kvm"), "accelerator \"kvm\"");
    check_refused_machine(&w, dir, "cpu", json_string("qemu64"), "CPU \"qemu64\"");
    check_refused_machine(&w, dir, "host_cpu", json_string("other"), "host CPU");
    check_refused_machine(&w, dir, "tsc_mhz", json_integer(77), "77 MHz");
    check_refused_machine(&w, dir, "machine", json_integer(99), "machine 99");
    /* A newer kernel or agent does not matter: they are in the memory. */
    edit_machine(dir, "kernel_sha256", json_string("other"));
    g_assert_true(w.driver->ops->check_saved(w.driver, dir, NULL));
    static const char *const names[] = {"memory.delta", "memory.map", "state", "disk"};
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++) {
        flip(dir, names[i]);
        refuse_from(&w, SNAPSHOT, "damaged");
        flip(dir, names[i]);
        g_assert_cmpuint(entries(&w, "layers"), ==, 0);
    }
    make_from(&w, &c, SNAPSHOT, SP_SAVED_WAKE, 1);
    talk = identify(&w, &c);
    g_assert_cmpint(look(talk).pid, ==, before.pid);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    remove_saved(&w, SNAPSHOT);
    check_nothing_left(&w);
}

/* A full volume: refused before the guest stands still, or clean when it fills up on the way. */
static void test_no_space(void)
{
    if (skip())
        return;
    struct world w;
    struct clone c;
    g_autoptr(GError) error = NULL;
    world_open(&w);
    struct sp_boot_talk *talk = make_origin(&w, &c, 1, NULL);
    struct counter before = look(talk);
    g_autofree char *filler = g_build_filename(sp_volume_dir(w.volume), "tmp", "filler", NULL);
    int fd = open(filler, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    for (off_t at = 0; fallocate(fd, 0, at, 4 << 20) == 0;)
        at += 4 << 20;
    g_assert_false(save(&w, &c, talk, SNAPSHOT, true, true, &error));
    g_test_message("refused: %s", error->message);
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    close(fd);
    g_assert_cmpint(unlink(filler), ==, 0);
    g_assert_cmpuint(entries(&w, "tmp"), ==, 0);
    g_assert_cmpuint(entries(&w, "saved"), ==, 0);
    struct counter after = look(talk);
    g_assert_cmpint(after.pid, ==, before.pid);
    must_save(&w, &c, talk, SNAPSHOT, true, true);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    remove_saved(&w, SNAPSHOT);
    check_nothing_left(&w);
}

/* --- pools --- */

static void test_claim(void)
{
    if (skip())
        return;
    struct world w;
    struct clone c;
    g_autoptr(GError) error = NULL;
    world_open(&w);
    const struct sp_driver_ops *ops = w.driver->ops;
    clone_plan(&w, &c, NULL);
    c.name = "pool-member-1";
    g_assert_nonnull(clone_try(&w, &c, 3, NULL, NULL, &error));
    g_assert_true(ops->pause(c.instance, NULL));
    struct clone taken;
    clone_plan(&w, &taken, NULL);
    ops->claim(c.instance, taken.id, taken.run_dir, "host", &error);
    g_assert_no_error(error);
    taken.instance = c.instance;
    g_assert_false(g_file_test(c.run_dir, G_FILE_TEST_EXISTS));
    g_assert_true(ops->resume(taken.instance, NULL));
    struct sp_boot_talk *talk = identify(&w, &taken);
    start_counter(talk);
    look(talk);
    g_assert_cmpuint(ops->slot(taken.instance), ==, 3);
    check_adopted_paused(&w, &taken, false);
    must_save(&w, &taken, talk, SNAPSHOT, true, false);
    struct sp_record record;
    g_assert_true(sp_record_load(taken.run_dir, &record, NULL));
    g_assert_cmpstr(record.id, ==, taken.id);
    g_assert_cmpstr(record.cgroup, ==, "pool-member-1");
    sp_record_clear(&record);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &taken);
    g_free(c.run_dir);
    remove_saved(&w, SNAPSHOT);
    check_nothing_left(&w);
}

static void prestart(struct world *w, const char *name, unsigned slot, char **ret_run_dir)
{
    g_autoptr(GError) error = NULL;
    struct clone c;
    clone_plan(w, &c, NULL);
    c.name = name;
    struct sp_driver_spec spec = clone_spec(w, &c, slot);
    w->driver->ops->prestart(w->driver, &spec, &error);
    g_assert_no_error(error);
    *ret_run_dir = c.run_dir;
}

static void remember(void *user, const char *step, int64_t us)
{
    if (strcmp(step, "qemu_start") == 0)
        *(int64_t *)user = us;
}

/* Makes one and says whether it took a VMM that was started ahead. */
static bool took(struct world *w, struct clone *c, unsigned slot)
{
    g_autoptr(GError) error = NULL;
    int64_t start_us = -1;
    clone_try(w, c, slot, remember, &start_us, &error);
    g_assert_no_error(error);
    return start_us < 500;
}

static void test_prestart(void)
{
    if (skip())
        return;
    struct world w;
    struct clone c;
    char *dirs[4];
    world_open(&w);
    const struct sp_driver_ops *ops = w.driver->ops;
    const char *digest = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
    prestart(&w, "pool-1", 11, &dirs[0]);
    prestart(&w, "pool-2", 12, &dirs[1]);
    prestart(&w, "pool-3", 13, &dirs[2]);
    prestart(&w, "pool-4", 14, &dirs[3]);
    g_assert_cmpuint(ops->prestarted(w.driver, digest, &test_shape), ==, 4);

    /* A plain create. */
    clone_plan(&w, &c, NULL);
    g_assert_true(took(&w, &c, 1));
    g_assert_cmpuint(ops->slot(c.instance), ==, 11);
    g_assert_false(g_file_test(dirs[0], G_FILE_TEST_EXISTS));
    struct sp_boot_talk *talk = identify(&w, &c);
    start_counter(talk);
    g_autofree char *files = ask(talk, "write", NULL, NULL);
    struct counter before = look(talk);
    must_save(&w, &c, talk, SNAPSHOT, true, true);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);

    /* The next one has died: it is passed over and removed. */
    struct sp_record record;
    g_assert_true(sp_record_load(dirs[1], &record, NULL));
    int pidfd = sp_record_open_process(&record, NULL);
    g_assert_true(sp_pidfd_kill(pidfd, 5000, NULL));
    close(pidfd);
    sp_record_clear(&record);
    g_assert_cmpuint(ops->prestarted(w.driver, digest, &test_shape), ==, 2);
    clone_plan(&w, &c, NULL);
    c.saved_dir = sp_saved_path(w.volume, SNAPSHOT);
    g_assert_true(took(&w, &c, 1));
    g_assert_cmpuint(ops->slot(c.instance), ==, 13);
    g_assert_false(g_file_test(dirs[1], G_FILE_TEST_EXISTS));
    talk = identify(&w, &c);
    g_assert_cmpint(look(talk).pid, ==, before.pid);
    g_autofree char *same = ask(talk, "check", NULL, NULL);
    g_assert_cmpstr(same, ==, files);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);

    /* The last one ends with the driver. */
    g_assert_cmpuint(ops->prestarted(w.driver, digest, &test_shape), ==, 1);
    w.driver->ops->driver_free(w.driver);
    w.driver = sp_driver_microvm_new(&w.env, NULL);
    g_assert_false(g_file_test(dirs[3], G_FILE_TEST_EXISTS));
    g_assert_cmpuint(ops->prestarted(w.driver, digest, &test_shape), ==, 0);
    clone_plan(&w, &c, NULL);
    c.saved_dir = sp_saved_path(w.volume, SNAPSHOT);
    g_assert_false(took(&w, &c, 1));
    clone_destroy(&w, &c);
    for (unsigned i = 0; i < G_N_ELEMENTS(dirs); i++)
        g_free(dirs[i]);
    remove_saved(&w, SNAPSHOT);
    check_nothing_left(&w);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "launcher") == 0)
        return sp_launcher_main(SP_LAUNCHER_FD);
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/microvm/saved/pause", test_pause);
    g_test_add_func("/microvm/saved/ended", test_ended);
    g_test_add_func("/microvm/saved/cycles", test_cycles);
    g_test_add_func("/microvm/saved/origin_goes_on", test_origin_goes_on);
    g_test_add_func("/microvm/saved/given_up", test_given_up);
    g_test_add_func("/microvm/saved/copies", test_copies);
    g_test_add_func("/microvm/saved/disk_only", test_disk_only);
    g_test_add_func("/microvm/saved/refusals", test_refusals);
    g_test_add_func("/microvm/saved/no_space", test_no_space);
    g_test_add_func("/microvm/saved/claim", test_claim);
    g_test_add_func("/microvm/saved/prestart", test_prestart);
    return g_test_run();
}
