/* Pausing, saving, waking and copying real VMs; as microvm_live, it says so where it cannot run. */
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "base/time.h"
#include "disk/saved.h"
#include "disk/tree.h"
#include "driver/record.h"
#include "microvm_saved_steps.h"
#include "os/pidfd.h"

static void refuse_from(struct world *w, const char *name, const char *message)
{
    g_autoptr(GError) error = NULL;
    struct clone c;
    clone_plan(w, &c, NULL);
    g_autofree char *dir = sp_saved_path(w->volume, name);
    for (unsigned use = SP_SAVED_WAKE; use <= SP_SAVED_COPY; use++) {
        c.saved_dir = dir;
        c.use = use;
        w->driver->ops->forget_saved(w->driver,
                                     dir); /* a form is verified once for all its copies */
        g_assert_null(clone_try(w, &c, 9, NULL, NULL, &error));
        g_test_message("refused: %s", error->message);
        g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
        g_assert_nonnull(strstr(error->message, message));
        g_clear_error(&error);
    }
    clone_destroy(w, &c);
}

/* --- pause --- */

static void test_pause(void)
{
    if (saved_skip())
        return;
    struct world w;
    struct clone c;
    world_open(&w);
    const struct sp_driver_ops *ops = w.driver->ops;
    struct sp_boot_talk *talk = saved_origin(&w, &c, 1, NULL);
    struct counter before = saved_look(talk);
    g_assert_true(ops->resume(c.instance, NULL));
    g_assert_true(sp_boot_talk_hold(talk, false, 5000, NULL));
    g_assert_true(ops->pause(c.instance, NULL));
    g_assert_true(ops->pause(c.instance, NULL));
    saved_adopt(&w, &c, true);
    g_usleep(1000000);
    g_assert_true(ops->resume(c.instance, NULL));
    g_assert_true(ops->resume(c.instance, NULL));
    saved_adopt(&w, &c, false);
    g_assert_true(sp_boot_talk_release(talk, 5000, NULL));
    struct counter after = saved_look(talk);
    g_assert_cmpint(after.pid, ==, before.pid);
    g_assert_cmpuint(after.count, >=, before.count);
    g_assert_cmpuint(after.count, <, before.count + 90); /* it stood still for a second */
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    saved_end(&w);
}

/* A machine that stands still because of something else is not made to run. */
static void test_ended(void)
{
    if (saved_skip())
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
    saved_end(&w);
}

/* --- suspend and wake --- */

static void test_cycles(void)
{
    if (saved_skip())
        return;
    struct world w;
    struct clone c;
    char *files;
    world_open(&w);
    g_assert_true(w.driver->ops->can_save_memory(w.driver, NULL));
    struct sp_boot_talk *talk = saved_origin(&w, &c, 1, &files);
    struct counter before = saved_look(talk);
    for (unsigned i = 0; i < 5; i++) {
        saved_must(&w, &c, talk, SNAPSHOT, true, true);
        sp_boot_talk_free(talk);
        clone_destroy(&w, &c);
        g_assert_cmpuint(saved_entries(&w, "layers"), ==, 0);
        if (i == 2) { /* another worker wakes it, with nothing in its memory */
            w.driver->ops->driver_free(w.driver);
            w.driver = sp_driver_microvm_new(&w.env, NULL);
        }
        saved_make(&w, &c, SNAPSHOT, SP_SAVED_WAKE, 1 + i);
        saved_remove(&w, SNAPSHOT);
        talk = saved_identify(&w, &c);
        struct counter now = saved_look(talk);
        g_assert_cmpint(now.pid, ==, before.pid);
        g_assert_cmpuint(now.count, >=, before.count);
        g_assert_cmpuint(now.count, <, before.count + 1000);
        before = now;
        g_autofree char *same = saved_ask(talk, "check", NULL, NULL);
        g_assert_cmpstr(same, ==, files);
        g_free(files);
        files = saved_ask(talk, "write", NULL, NULL);
    }
    g_free(files);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    saved_end(&w);
}

/* A snapshot: the origin goes on, and is not disturbed by the form or its removal. */
static void test_origin_goes_on(void)
{
    if (saved_skip())
        return;
    struct world w;
    struct clone c;
    char *files;
    world_open(&w);
    struct sp_boot_talk *talk = saved_origin(&w, &c, 1, &files);
    struct counter before = saved_look(talk);
    saved_must(&w, &c, talk, SNAPSHOT, true, false);
    saved_go_on(&w, &c, talk);
    struct counter after = saved_look(talk);
    g_assert_cmpint(after.pid, ==, before.pid);
    /* The same name again. */
    g_autoptr(GError) error = NULL;
    g_assert_false(saved_save(&w, &c, talk, SNAPSHOT, true, false, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_CONFLICT);
    saved_go_on(&w, &c, talk);
    saved_remove(&w, SNAPSHOT);
    g_autofree char *same = saved_ask(talk, "check", NULL, NULL);
    g_assert_cmpstr(same, ==, files);
    g_free(files);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    saved_end(&w);
}

/* Not captured, or given up at some point: nothing stays, the VM runs on. */
static void test_given_up(void)
{
    if (saved_skip())
        return;
    struct world w;
    struct clone c;
    g_autoptr(GError) error = NULL;
    world_open(&w);
    const struct sp_driver_ops *ops = w.driver->ops;
    struct sp_boot_talk *talk = saved_origin(&w, &c, 1, NULL);
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
        g_assert_cmpuint(saved_entries(&w, "tmp"), ==, 0);
        g_assert_cmpuint(saved_entries(&w, "saved"), ==, 0);
    }
    g_assert_true(ops->resume(c.instance, NULL));
    saved_look(talk);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    saved_end(&w);
}

/* --- copies --- */

#define N_COPIES 3

static void test_copies(void)
{
    if (saved_skip())
        return;
    struct world w;
    struct clone c, copies[N_COPIES], again;
    char *files;
    world_open(&w);
    struct sp_boot_talk *talk = saved_origin(&w, &c, 1, &files);
    struct counter origin = saved_look(talk);
    saved_must(&w, &c, talk, SNAPSHOT, true, false);
    saved_go_on(&w, &c, talk);
    g_autofree char *seen = saved_ask(talk, "random", NULL, NULL);
    sp_boot_talk_free(talk);
    for (unsigned i = 0; i < N_COPIES; i++) {
        saved_make(&w, &copies[i], SNAPSHOT, SP_SAVED_COPY, 2 + i);
        talk = saved_identify(&w, &copies[i]);
        struct counter now = saved_look(talk);
        g_assert_cmpint(now.pid, ==, origin.pid);
        g_assert_cmpuint(now.count, >=, origin.count);
        g_autofree char *same = saved_ask(talk, "check", NULL, NULL);
        g_assert_cmpstr(same, ==, files);
        g_autofree char *random = saved_ask(talk, "random", NULL, NULL);
        g_assert_cmpstr(random, !=, seen);
        sp_boot_talk_free(talk);
    }
    /* A copy writes files of its own and is saved, when its snapshot, its boot image and the origin
     * are gone; then it wakes in a worker that knows nothing. */
    saved_remove(&w, SNAPSHOT);
    clone_destroy(&w, &c);
    g_autofree char *images = g_build_filename(w.template_dir, "vm", NULL);
    g_assert_cmpint(sp_tree_remove(images), ==, 0);
    talk = clone_talk(&w, &copies[0]);
    g_free(files);
    files = saved_ask(talk, "write", NULL, NULL);
    struct counter before = saved_look(talk);
    saved_must(&w, &copies[0], talk, SNAPSHOT, true, true);
    sp_boot_talk_free(talk);
    for (unsigned i = 0; i < N_COPIES; i++)
        clone_destroy(&w, &copies[i]);
    w.driver->ops->driver_free(w.driver);
    w.driver = sp_driver_microvm_new(&w.env, NULL);
    for (unsigned use = SP_SAVED_WAKE; use <= SP_SAVED_COPY; use++) {
        saved_make(&w, &again, SNAPSHOT, use, 7);
        talk = saved_identify(&w, &again);
        struct counter now = saved_look(talk);
        g_assert_cmpint(now.pid, ==, before.pid);
        g_assert_cmpuint(now.count, >=, before.count);
        g_autofree char *same = saved_ask(talk, "check", NULL, NULL);
        g_assert_cmpstr(same, ==, files);
        sp_boot_talk_free(talk);
        clone_destroy(&w, &again);
    }
    g_free(files);
    saved_remove(&w, SNAPSHOT);
    saved_end(&w);
}

/* --- only the disk --- */

static void test_disk_only(void)
{
    if (saved_skip())
        return;
    struct world w;
    struct clone c, copy;
    char *files;
    world_open(&w);
    struct sp_boot_talk *talk = saved_origin(&w, &c, 1, &files);
    saved_must(&w, &c, talk, SNAPSHOT, false, true); /* HOLD has synced */
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    saved_make(&w, &c, SNAPSHOT, SP_SAVED_WAKE, 2);
    saved_remove(&w, SNAPSHOT);
    talk = saved_identify(&w, &c);
    g_autofree char *same = saved_ask(talk, "check", NULL, NULL);
    g_assert_cmpstr(same, ==, files);
    /* It has booted; it can be saved with memory, without any boot image under it. */
    saved_start_counter(talk);
    struct counter before = saved_look(talk);
    saved_must(&w, &c, talk, SNAPSHOT, true, true);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    for (unsigned use = SP_SAVED_WAKE; use <= SP_SAVED_COPY; use++) {
        saved_make(&w, &copy, SNAPSHOT, use, 3);
        talk = saved_identify(&w, &copy);
        struct counter now = saved_look(talk);
        g_assert_cmpint(now.pid, ==, before.pid);
        sp_boot_talk_free(talk);
        clone_destroy(&w, &copy);
    }
    g_free(files);
    saved_remove(&w, SNAPSHOT);
    saved_end(&w);
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
    if (saved_skip())
        return;
    struct world w;
    struct clone c;
    world_open(&w);
    struct sp_boot_talk *talk = saved_origin(&w, &c, 1, NULL);
    struct counter before = saved_look(talk);
    saved_must(&w, &c, talk, SNAPSHOT, true, true);
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
        g_assert_cmpuint(saved_entries(&w, "layers"), ==, 0);
    }
    saved_make(&w, &c, SNAPSHOT, SP_SAVED_WAKE, 1);
    talk = saved_identify(&w, &c);
    g_assert_cmpint(saved_look(talk).pid, ==, before.pid);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    saved_remove(&w, SNAPSHOT);
    saved_end(&w);
}

/* A full volume: refused before the guest stands still, or clean when it fills up on the way. */
static void test_no_space(void)
{
    if (saved_skip())
        return;
    struct world w;
    struct clone c;
    g_autoptr(GError) error = NULL;
    world_open(&w);
    struct sp_boot_talk *talk = saved_origin(&w, &c, 1, NULL);
    struct counter before = saved_look(talk);
    g_autofree char *filler = g_build_filename(sp_volume_dir(w.volume), "tmp", "filler", NULL);
    int fd = open(filler, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    for (off_t at = 0; fallocate(fd, 0, at, 4 << 20) == 0;)
        at += 4 << 20;
    g_assert_false(saved_save(&w, &c, talk, SNAPSHOT, true, true, &error));
    g_test_message("refused: %s", error->message);
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    close(fd);
    g_assert_cmpint(unlink(filler), ==, 0);
    g_assert_cmpuint(saved_entries(&w, "tmp"), ==, 0);
    g_assert_cmpuint(saved_entries(&w, "saved"), ==, 0);
    struct counter after = saved_look(talk);
    g_assert_cmpint(after.pid, ==, before.pid);
    saved_must(&w, &c, talk, SNAPSHOT, true, true);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    saved_remove(&w, SNAPSHOT);
    saved_end(&w);
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
    return g_test_run();
}
