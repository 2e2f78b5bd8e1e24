/* That a saved form holds every page of a guest that writes while it is saved; real VMs, as
 * microvm_live. */
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
#include "driver/microvm/delta.h"
#include "driver/microvm/memory.h"
#include "driver/microvm/save_private.h"
#include "driver/microvm/track.h"
#include "driver/record.h"
#include "microvm_saved_steps.h"
#include "os/pidfd.h"

/* --- write tracking --- */

/* Every page of the VM, which stands still, against base and delta of the form. */
static void compare_memory(struct world *w, struct clone *c, const char *name)
{
    enum { RAM_PAGES = 65536 };
    g_autoptr(GError) error = NULL;
    struct sp_record record;
    struct sp_guest_ram ram;
    struct sp_page_map map;
    g_autofree char *dir = sp_saved_path(w->volume, name);
    g_autofree uint8_t *form = g_malloc(256 << 20), *vm = g_malloc(256 << 20);
    static const char *const names[] = {"base", "memory.delta", "memory.map"};
    int fds[3];
    for (unsigned i = 0; i < 3; i++) {
        g_autofree char *path = g_build_filename(dir, names[i], NULL);
        fds[i] = open(path, O_RDONLY | O_CLOEXEC);
        g_assert_cmpint(fds[i], >=, 0);
    }
    g_assert_true(sp_memory_read(fds[0], form, 256 << 20, 0, NULL));
    g_assert_true(sp_page_map_load(&map, fds[2], 256 << 20, NULL));
    struct sp_page_run run = {0};
    while (sp_page_map_next(&map, run.first + run.count, RAM_PAGES, &run))
        g_assert_true(sp_memory_read(fds[1], form + run.first * SP_PAGE_BYTES,
                                     run.count * SP_PAGE_BYTES,
                                     (int64_t)(run.first * SP_PAGE_BYTES), NULL));
    g_test_message("%u pages in the delta", (unsigned)sp_page_map_count(&map));
    sp_page_map_clear(&map);

    g_assert_true(sp_record_load(c->run_dir, &record, NULL));
    sp_guest_ram_find(record.pid, w->driver->ops->pidfd(c->instance), 256 << 20, &ram, &error);
    g_assert_no_error(error);
    sp_record_clear(&record);
    g_autoptr(GArray) runs = g_array_new(FALSE, FALSE, sizeof run);
    g_autoptr(GArray) pieces = g_array_new(FALSE, FALSE, sizeof run);
    run = (struct sp_page_run){0, RAM_PAGES};
    g_array_append_val(runs, run);
    guint at = 0;
    uint64_t skip = 0;
    sp_guest_ram_read(&ram, runs, &at, &skip, vm, 256 << 20, pieces, &error);
    g_assert_no_error(error);
    unsigned wrong = 0;
    for (unsigned i = 0; i < RAM_PAGES; i++)
        wrong += memcmp(form + (size_t)i * SP_PAGE_BYTES, vm + (size_t)i * SP_PAGE_BYTES,
                        SP_PAGE_BYTES) != 0;
    g_assert_cmpuint(wrong, ==, 0);
    for (unsigned i = 0; i < 3; i++)
        close(fds[i]);
}

/* The kernel's two ways to tell private pages agree. */
static void compare_scans(struct world *w, struct clone *c)
{
    struct sp_record record;
    struct sp_guest_ram ram;
    g_assert_true(sp_record_load(c->run_dir, &record, NULL));
    g_assert_true(
        sp_guest_ram_find(record.pid, w->driver->ops->pidfd(c->instance), 256 << 20, &ram, NULL));
    sp_record_clear(&record);
    g_autoptr(GArray) a = g_array_new(FALSE, FALSE, sizeof(struct sp_page_run));
    g_autoptr(GArray) b = g_array_new(FALSE, FALSE, sizeof(struct sp_page_run));
    g_assert_true(sp_guest_ram_private(&ram, a, NULL));
    g_assert_true(sp_guest_ram_private_by_pagemap(&ram, b, NULL));
    g_assert_cmpuint(a->len, ==, b->len);
    g_assert_cmpint(memcmp(a->data, b->data, a->len * sizeof(struct sp_page_run)), ==, 0);
}

/* Saved again and again. */
static void check_rounds(struct world *w, struct clone *c, unsigned rounds, bool tracked)
{
    const struct sp_driver_ops *ops = w->driver->ops;
    g_autoptr(GError) error = NULL;
    for (unsigned i = 0; i < rounds; i++) {
        struct sp_save_spec spec = {.saved_name = SNAPSHOT, .memory = true, .durable = i % 2};
        struct sp_saved_result result;
        g_usleep(200000);
        struct sp_saving *saving = ops->save_begin(c->instance, &spec, &error);
        g_assert_no_error(error);
        g_assert_cmpint(((struct vm_saving *)saving)->tracker != NULL, ==, tracked);
        g_assert_true(ops->pause(c->instance, NULL)); /* no HOLD: right in the middle of things */
        ops->save_capture(saving, &error);
        g_assert_no_error(error);
        ops->save_finish(saving, &result, NULL, NULL, &error);
        g_assert_no_error(error);
        ops->save_free(saving);
        compare_scans(w, c);
        compare_memory(w, c, SNAPSHOT);
        g_assert_true(ops->resume(c->instance, NULL));
        saved_remove(w, SNAPSHOT);
    }
}

/* A VM that writes its memory and its disk all the time. */
static struct sp_boot_talk *make_busy(struct world *w, struct clone *c)
{
    const char *counter[] = {"/bin/tool", "counter", "8", "24", NULL};
    const char *churn[] = {"/bin/tool", "churn", NULL};
    clone_create(w, c, 1, NULL, NULL);
    struct sp_boot_talk *talk = saved_identify(w, c);
    g_assert_true(sp_boot_talk_start(talk, "counter", counter, "root", 5000, NULL));
    g_assert_true(sp_boot_talk_start(talk, "churn", churn, "root", 5000, NULL));
    saved_look(talk);
    return talk;
}

/* By hand more: SPACE_TEST_ROUNDS. */
static unsigned rounds(void)
{
    const char *given = g_getenv("SPACE_TEST_ROUNDS");
    return given ? (unsigned)g_ascii_strtoull(given, NULL, 10) : 6;
}

/* A guest that writes while it is saved: not one page is missed, whichever way is taken. */
static void check_every_page(bool tracked)
{
    struct world w;
    struct clone c;
    world_open(&w);
    ((struct sp_microvm *)w.driver)->untracked = !tracked;
    struct sp_boot_talk *talk = make_busy(&w, &c);
    check_rounds(&w, &c, rounds(), tracked);
    saved_look(talk);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    saved_end(&w);
}

/* The same of a VM that another worker made, of a copy, and of one that woke with its delta. */
static void check_others(void)
{
    static const char origin_form[] = "snp_01hzy0000000000000000000bb";
    struct world w;
    struct clone c, other;
    world_open(&w);
    struct sp_boot_talk *talk = make_busy(&w, &c);
    saved_must(&w, &c, talk, origin_form, true, false);
    saved_go_on(&w, &c, talk);
    sp_boot_talk_free(talk);
    saved_adopt(&w, &c, false);
    check_rounds(&w, &c, rounds() / 2, true);
    clone_destroy(&w, &c);
    for (unsigned use = SP_SAVED_WAKE; use <= SP_SAVED_COPY; use++) {
        saved_make(&w, &other, origin_form, use, 2 + use);
        talk = saved_identify(&w, &other);
        check_rounds(&w, &other, rounds() / 2, true);
        saved_look(talk);
        sp_boot_talk_free(talk);
        clone_destroy(&w, &other);
    }
    saved_remove(&w, origin_form);
    saved_end(&w);
}

static void test_every_page(void)
{
    if (!saved_skip())
        check_every_page(false);
}

static bool skip_tracked(void)
{
    if (saved_skip())
        return true;
    if (sp_tracker_possible(NULL))
        return false;
    g_test_skip("NOT TESTED: this kernel cannot track writes (Linux 6.7)");
    return true;
}

static void test_every_page_tracked(void)
{
    if (!skip_tracked())
        check_every_page(true);
}

static void test_every_page_of_others(void)
{
    if (!skip_tracked())
        check_others();
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "launcher") == 0)
        return sp_launcher_main(SP_LAUNCHER_FD);
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/microvm/saved/every_page", test_every_page);
    g_test_add_func("/microvm/saved/every_page_tracked", test_every_page_tracked);
    g_test_add_func("/microvm/saved/every_page_of_others", test_every_page_of_others);
    return g_test_run();
}
