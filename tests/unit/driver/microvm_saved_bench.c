/*
 * How long pausing, saving, waking and copying a microVM take. Not a test: run by hand with the
 * environment of microvm_live. The guest holds MIB of random bytes of its own and rewrites
 * DIRTY_MIB all the time.
 */
#include <glib.h>
#include <stdio.h>
#include <string.h>

#include "base/time.h"
#include "disk/saved.h"
#include "microvm_world.h"

#define N_COPIES 3

static GHashTable *times; /* row → GArray of int64_t */
static GPtrArray *order;

static void add_us(const char *row, int64_t us)
{
    GArray *list = g_hash_table_lookup(times, row);
    if (!list) {
        list = g_array_new(FALSE, FALSE, sizeof(int64_t));
        g_hash_table_insert(times, g_strdup(row), list);
        g_ptr_array_add(order, g_strdup(row));
    }
    g_array_append_val(list, us);
}

static int64_t lap(const char *row, int64_t since_us)
{
    int64_t now_us = sp_time_monotonic_us();
    if (row)
        add_us(row, now_us - since_us);
    return now_us;
}

static void add_step(void *user, const char *step, int64_t us)
{
    g_autofree char *row = g_strdup_printf("    %s %s", (const char *)user, step);
    add_us(row, us);
}

static gint by_value(gconstpointer a, gconstpointer b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void print_rows(void)
{
    printf("%-34s %4s %8s %8s %8s ms\n", "row", "n", "min", "median", "p90");
    for (unsigned i = 0; i < order->len; i++) {
        GArray *list = g_hash_table_lookup(times, order->pdata[i]);
        g_array_sort(list, by_value);
        printf("%-34s %4u %8.1f %8.1f %8.1f\n", (char *)order->pdata[i], list->len,
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

static int64_t save(struct world *w, struct clone *c, struct sp_boot_talk *talk, const char *name,
                    bool durable, bool go_on, const char *row)
{
    const struct sp_driver_ops *ops = w->driver->ops;
    struct sp_save_spec spec = {.saved_name = name, .memory = true, .durable = durable};
    struct sp_saved_result result;
    GError *error = NULL;
    int64_t start_us = sp_time_monotonic_us();
    struct sp_saving *saving = ops->save_begin(c->instance, &spec, &error);
    check(saving != NULL, error);
    g_autofree char *begin_row = g_strdup_printf("  %s begin", row);
    int64_t at_us = lap(begin_row, start_us);
    check(sp_boot_talk_hold(talk, false, 5000, &error), error);
    g_autofree char *hold_row = g_strdup_printf("  %s hold", row);
    int64_t stop_us = lap(hold_row, at_us);
    check(ops->pause(c->instance, &error) && ops->save_capture(saving, &error), error);
    if (go_on)
        check(ops->resume(c->instance, &error), error);
    g_autofree char *pause_row = g_strdup_printf("  %s stop to cont", row);
    at_us = lap(pause_row, stop_us);
    if (go_on) {
        check(sp_boot_talk_release(talk, 5000, &error), error);
        g_autofree char *held_row = g_strdup_printf("  %s hold to release", row);
        at_us = lap(held_row, stop_us);
    }
    check(ops->save_finish(saving, &result, add_step, (char *)row, &error), error);
    g_autofree char *finish_row = g_strdup_printf("  %s finish", row);
    lap(finish_row, at_us);
    ops->save_free(saving);
    g_autofree char *all_row = g_strdup_printf("= %s", row);
    lap(all_row, start_us);
    return result.size_bytes;
}

static void make(struct world *w, struct clone *c, const char *name, enum sp_saved_use use,
                 unsigned slot, const char *row, bool steps)
{
    GError *error = NULL;
    clone_plan(w, c, NULL);
    g_autofree char *dir = name ? sp_saved_path(w->volume, name) : NULL;
    c->saved_dir = dir;
    c->use = use;
    int64_t start_us = sp_time_monotonic_us();
    check(clone_try(w, c, slot, steps ? add_step : NULL, (char *)row, &error) != NULL, error);
    c->saved_dir = NULL;
    struct sp_boot_talk *talk = clone_talk(w, c);
    g_autofree char *up_row = g_strdup_printf("  %s to HELLO", row);
    lap(up_row, start_us);
    check(sp_boot_talk_identity(talk, 10000, &error), error);
    g_autofree char *all_row = g_strdup_printf("= %s with IDENTITY", row);
    lap(all_row, start_us);
    sp_boot_talk_free(talk);
}

static void prestart(struct world *w, unsigned i)
{
    GError *error = NULL;
    struct clone c;
    clone_plan(w, &c, NULL);
    g_autofree char *name = g_strdup_printf("pool-%u", i);
    c.name = name;
    struct sp_driver_spec spec = clone_spec(w, &c, 100);
    int64_t start_us = sp_time_monotonic_us();
    check(w->driver->ops->prestart(w->driver, &spec, &error), error);
    lap("= prestart", start_us);
    g_free(c.run_dir);
}

static void forget(struct world *w, const char *name)
{
    g_autofree char *dir = sp_saved_path(w->volume, name);
    w->driver->ops->forget_saved(w->driver, dir);
    sp_saved_remove(w->volume, name, NULL);
}

static void one_round(struct world *w, unsigned i, const char *mib, const char *dirty_mib)
{
    const struct sp_driver_ops *ops = w->driver->ops;
    const char *argv[] = {"/bin/tool", "counter", mib, dirty_mib, NULL};
    const char *ask[] = {"/bin/tool", "ask", NULL};
    GError *error = NULL;
    struct clone c, copies[N_COPIES];
    clone_plan(w, &c, NULL);
    make(w, &c, NULL, SP_SAVED_WAKE, 1, "create", false);
    struct sp_boot_talk *talk = clone_talk(w, &c);
    sp_boot_talk_start(talk, "counter", argv, "root", 5000, NULL);
    check(sp_boot_talk_run(talk, ask, "root", 60000, NULL, NULL, &error), error);
    g_usleep(300000);

    int64_t at_us = sp_time_monotonic_us();
    check(ops->pause(c.instance, &error), error);
    at_us = lap("= pause", at_us);
    check(ops->resume(c.instance, &error), error);
    lap("= resume", at_us);

    int64_t size = save(w, &c, talk, "snp_fork", false, true, "fork");
    for (unsigned n = 0; n < N_COPIES; n++)
        make(w, &copies[n], "snp_fork", SP_SAVED_COPY, 2 + n, n ? "child" : "first child", true);
    for (unsigned n = 0; n < N_COPIES; n++)
        clone_destroy(w, &copies[n]);
    forget(w, "snp_fork");

    save(w, &c, talk, "snp_suspend", true, false, "suspend");
    sp_boot_talk_free(talk);
    at_us = sp_time_monotonic_us();
    clone_destroy(w, &c);
    lap("= destroy", at_us);
    make(w, &c, "snp_suspend", SP_SAVED_WAKE, 1, "wake", true);
    clone_destroy(w, &c);
    prestart(w, i);
    make(w, &c, "snp_suspend", SP_SAVED_WAKE, 1, "wake prestarted", true);
    clone_destroy(w, &c);
    prestart(w, i + 1000);
    make(w, &c, NULL, SP_SAVED_WAKE, 1, "create prestarted", true);
    clone_destroy(w, &c);
    forget(w, "snp_suspend");
    if (i == 0)
        printf("written by the first fork: %.1f MiB\n", (double)size / 1048576);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "launcher") == 0)
        return sp_launcher_main(SP_LAUNCHER_FD);
    const char *why_not = world_missing();
    if (why_not || argc != 4) {
        fprintf(stderr, "%s\n",
                why_not ? why_not : "usage: microvm_saved_bench ROUNDS MIB DIRTY_MIB");
        return 1;
    }
    struct world w;
    times = g_hash_table_new(g_str_hash, g_str_equal);
    order = g_ptr_array_new();
    world_open(&w);
    check(w.driver->ops->prepare(w.driver, w.template_dir, &test_shape, NULL, NULL, NULL), NULL);
    for (unsigned i = 0; i < (unsigned)g_ascii_strtoull(argv[1], NULL, 10); i++)
        one_round(&w, i, argv[2], argv[3]);
    print_rows();
    world_close(&w);
    return 0;
}
