/*
 * How long a fork stops its origin, with and without write tracking, and what tracking costs the
 * guest. Not a test: run by hand with the environment of microvm_live.
 *
 * One VM holds MIB of random bytes of its own and rewrites PAGES pages of a set of DIRTY_MIB every
 * 10 ms (26: 10 MiB/s, 128: 50 MiB/s). It is not held, so it writes up to the stop.
 */
#include <glib.h>
#include <stdio.h>
#include <string.h>

#include "base/time.h"
#include "disk/saved.h"
#include "driver/microvm/save_private.h"
#include "microvm_world.h"

#define FORM "snp_01hzy0000000000000000000aa"

enum row {
    BEGIN,
    PAUSE,
    STOP,
    CAPTURE,
    CONT,
    STATE_STEP,
    PAGES_STEP,
    MEMORY_STEP,
    DISK_STEP,
    AHEAD_STEP,
    REST_KIB,
    PRIVATE_KIB,
    N_ROWS
};
static const char *const names[N_ROWS] = {
    "save_begin",
    "stop to cont",
    "  stop",
    "  capture",
    "  cont",
    "    state",
    "    pages",
    "    copy_memory",
    "    copy_disk",
    "copy_ahead",
    "written in the pause, MiB",
    "in the form, MiB",
};

static GArray *rows[N_ROWS];

static void add(enum row row, int64_t value)
{
    g_array_append_val(rows[row], value);
}

static gint by_value(gconstpointer a, gconstpointer b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void print_rows(void)
{
    for (unsigned i = 0; i < N_ROWS; i++) {
        GArray *list = rows[i];
        g_array_sort(list, by_value);
        printf("%-28s %3u %8.1f / %.1f / %.1f\n", names[i], list->len,
               (double)g_array_index(list, int64_t, 0) / 1e3,
               (double)g_array_index(list, int64_t, list->len / 2) / 1e3,
               (double)g_array_index(list, int64_t, list->len * 9 / 10) / 1e3);
    }
}

static void check(bool ok, GError *error)
{
    if (!ok)
        g_error("%s", error ? error->message : "failed");
}

static unsigned long count(struct sp_boot_talk *talk)
{
    const char *argv[] = {"/bin/tool", "ask", NULL};
    GError *error = NULL;
    GString *text = g_string_new(NULL);
    unsigned long n = 0;
    check(sp_boot_talk_run(talk, argv, "root", 60000, text, NULL, &error), error);
    check(sscanf(text->str, "%*d %lu", &n) == 1, NULL);
    g_string_free(text, TRUE);
    return n;
}

static void one_round(struct world *w, struct clone *c)
{
    const struct sp_driver_ops *ops = w->driver->ops;
    struct sp_save_spec spec = {.saved_name = FORM, .memory = true, .durable = false};
    struct sp_saved_result result;
    GError *error = NULL;
    int64_t t0 = sp_time_monotonic_us();
    struct sp_saving *saving = ops->save_begin(c->instance, &spec, &error);
    check(saving != NULL, error);
    struct vm_saving *s = (struct vm_saving *)saving;
    int64_t t1 = sp_time_monotonic_us();
    check(ops->pause(c->instance, &error), error);
    int64_t t2 = sp_time_monotonic_us();
    check(ops->save_capture(saving, &error), error);
    int64_t t3 = sp_time_monotonic_us();
    check(ops->resume(c->instance, &error), error);
    int64_t t4 = sp_time_monotonic_us();
    add(BEGIN, t1 - t0);
    add(PAUSE, t4 - t1);
    add(STOP, t2 - t1);
    add(CAPTURE, t3 - t2);
    add(CONT, t4 - t3);
    add(STATE_STEP, s->phase_us[STATE]);
    add(PAGES_STEP, s->phase_us[PAGES]);
    add(MEMORY_STEP, s->phase_us[COPY_MEMORY]);
    add(DISK_STEP, s->phase_us[COPY_DISK]);
    add(AHEAD_STEP, s->phase_us[COPY_AHEAD]);
    add(REST_KIB, (int64_t)s->rest_pages * 4 * 1000 / 1024);
    check(ops->save_finish(saving, &result, NULL, NULL, &error), error);
    add(PRIVATE_KIB, result.size_bytes / 1024 * 1000 / 1024);
    ops->save_free(saving);
    g_autofree char *dir = sp_saved_path(w->volume, FORM);
    ops->forget_saved(w->driver, dir);
    check(sp_saved_remove(w->volume, FORM, &error), error);
}

/* How many ticks of 10 ms the guest's program does in a second while all its pages are protected
 * again and again, and without. */
static void cost(struct world *w, struct clone *c, struct sp_boot_talk *talk, unsigned every_ms)
{
    struct sp_record record;
    struct sp_guest_ram ram;
    GError *error = NULL;
    int pidfd = w->driver->ops->pidfd(c->instance);
    check(sp_record_load(c->run_dir, &record, &error) &&
              sp_guest_ram_find(record.pid, pidfd, test_shape.memory_mb << 20, &ram, &error),
          error);
    struct sp_tracker *tracker = every_ms ? sp_tracker_open(pidfd, &ram, &error) : NULL;
    check(!every_ms || tracker, error);
    unsigned long before = count(talk);
    int64_t start_us = sp_time_monotonic_us(), scans = 0, scan_us = 0;
    while (sp_time_monotonic_us() - start_us < 4000000) {
        g_usleep((every_ms ? every_ms : 100) * 1000);
        if (!tracker)
            continue;
        g_autoptr(GArray) runs = g_array_new(FALSE, FALSE, sizeof(struct sp_page_run));
        int64_t at_us = sp_time_monotonic_us();
        check(sp_guest_ram_written(&ram, true, runs, &error), error);
        scan_us += sp_time_monotonic_us() - at_us;
        scans++;
    }
    unsigned long after = count(talk);
    double seconds = (double)(sp_time_monotonic_us() - start_us) / 1e6;
    printf("protected every %u ms: %.1f ticks/s; a scan %.2f ms\n", every_ms,
           (double)(after - before) / seconds, scans ? (double)scan_us / 1e3 / (double)scans : 0.0);
    sp_tracker_free(tracker);
    sp_record_clear(&record);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "launcher") == 0)
        return sp_launcher_main(SP_LAUNCHER_FD);
    const char *why_not = world_missing();
    if (why_not || argc != 6) {
        fprintf(stderr, "%s\n",
                why_not ? why_not
                        : "usage: microvm_pause_bench ROUNDS MIB DIRTY_MIB PAGES plain|tracked");
        return 1;
    }
    struct world w;
    struct clone c;
    GError *error = NULL;
    bool tracked = strcmp(argv[5], "tracked") == 0;
    for (unsigned i = 0; i < N_ROWS; i++)
        rows[i] = g_array_new(FALSE, FALSE, sizeof(int64_t));
    world_open(&w);
    ((struct sp_microvm *)w.driver)->untracked = !tracked;
    clone_create(&w, &c, 1, NULL, NULL);
    struct sp_boot_talk *talk = clone_talk(&w, &c);
    check(sp_boot_talk_identity(talk, 10000, &error), error);
    const char *counter[] = {"/bin/tool", "counter", argv[2], argv[3], argv[4], NULL};
    check(sp_boot_talk_start(talk, "counter", counter, "root", 5000, &error), error);
    count(talk);
    g_usleep(1500000);
    for (unsigned i = 0; i < (unsigned)g_ascii_strtoull(argv[1], NULL, 10); i++)
        one_round(&w, &c);
    print_rows();
    for (unsigned i = 0; tracked && i < 2; i++) {
        cost(&w, &c, talk, 0);
        cost(&w, &c, talk, 1000);
        cost(&w, &c, talk, 100);
    }
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    world_close(&w);
    return 0;
}
