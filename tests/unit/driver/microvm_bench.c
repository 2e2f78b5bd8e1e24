/*
 * How long the steps of a microVM take, and what an idle one weighs. Not a test: run by hand with
 * the environment of microvm_live; SPACE_TEST_TEMPLATE: a real template's directory.
 */
#include <glib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "microvm_world.h"

struct steps {
    GHashTable *times; /* step → GArray of int64_t */
    GPtrArray *order;
};

static void add_time(void *user, const char *step, int64_t us)
{
    struct steps *steps = user;
    GArray *list = g_hash_table_lookup(steps->times, step);
    if (!list) {
        list = g_array_new(FALSE, FALSE, sizeof(int64_t));
        g_hash_table_insert(steps->times, g_strdup(step), list);
        g_ptr_array_add(steps->order, g_strdup(step));
    }
    g_array_append_val(list, us);
}

static gint by_value(gconstpointer a, gconstpointer b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void bench(unsigned n)
{
    struct world w;
    struct steps steps = {
        .times = g_hash_table_new(g_str_hash, g_str_equal),
        .order = g_ptr_array_new(),
    };
    world_open(&w);
    int64_t start_us = sp_time_monotonic_us();
    struct sp_tier_status status;
    w.driver->ops->probe(w.driver, &status);
    printf("probe %.0f ms: %s\n", (double)(sp_time_monotonic_us() - start_us) / 1e3, status.detail);
    start_us = sp_time_monotonic_us();
    g_autoptr(GError) error = NULL;
    w.driver->ops->prepare(w.driver, w.template_dir, &test_shape, NULL, NULL, &error);
    g_assert_no_error(error);
    printf("prepare %.0f ms\n", (double)(sp_time_monotonic_us() - start_us) / 1e3);
    for (unsigned i = 0; i < n; i++) {
        struct clone c = {0};
        start_us = sp_time_monotonic_us();
        clone_create(&w, &c, i, add_time, &steps);
        add_time(&steps, "= create", sp_time_monotonic_us() - start_us);
        start_us = sp_time_monotonic_us();
        struct sp_boot_talk *talk = clone_talk(&w, &c);
        add_time(&steps, "  hello", sp_time_monotonic_us() - start_us);
        start_us = sp_time_monotonic_us();
        g_assert_true(sp_boot_talk_identity(talk, 5000, NULL));
        add_time(&steps, "  identity", sp_time_monotonic_us() - start_us);
        start_us = sp_time_monotonic_us();
        const char *argv[] = {"/bin/true", NULL};
        sp_boot_talk_run(talk, argv, NULL, 5000, NULL, NULL, NULL);
        add_time(&steps, "  first /bin/true", sp_time_monotonic_us() - start_us);
        start_us = sp_time_monotonic_us();
        const char *python[] = {"python3", "-c", "1", NULL};
        sp_boot_talk_run(talk, python, NULL, 5000, NULL, NULL, NULL);
        add_time(&steps, "  first python3", sp_time_monotonic_us() - start_us);
        sp_boot_talk_free(talk);
        start_us = sp_time_monotonic_us();
        clone_destroy(&w, &c);
        add_time(&steps, "= destroy", sp_time_monotonic_us() - start_us);
    }
    printf("%-18s %8s %8s %8s ms\n", "step", "min", "median", "p90");
    for (unsigned i = 0; i < steps.order->len; i++) {
        GArray *list = g_hash_table_lookup(steps.times, steps.order->pdata[i]);
        g_array_sort(list, by_value);
        printf("%-18s %8.1f %8.1f %8.1f\n", (char *)steps.order->pdata[i],
               (double)g_array_index(list, int64_t, 0) / 1e3,
               (double)g_array_index(list, int64_t, list->len / 2) / 1e3,
               (double)g_array_index(list, int64_t, list->len * 9 / 10) / 1e3);
    }
    world_close(&w);
}

static int64_t meminfo_kb(const char *name)
{
    g_autofree char *text = NULL;
    g_assert_true(g_file_get_contents("/proc/meminfo", &text, NULL, NULL));
    const char *at = strstr(text, name);
    return at ? g_ascii_strtoll(at + strlen(name) + 1, NULL, 10) : 0;
}

/* Host memory of n VMs at once that have only got their identity. */
static void density(unsigned n)
{
    struct world w;
    struct clone *clones = g_new0(struct clone, n + 1);
    world_open(&w);
    /* The first one pays for the image. */
    clone_create(&w, &clones[n], n, NULL, NULL);
    int64_t before_kb = meminfo_kb("MemAvailable:");
    for (unsigned i = 0; i < n; i++) {
        clone_create(&w, &clones[i], i, NULL, NULL);
        struct sp_boot_talk *talk = clone_talk(&w, &clones[i]);
        g_assert_true(sp_boot_talk_identity(talk, 5000, NULL));
        sp_boot_talk_free(talk);
    }
    g_usleep(2000000); /* the kernel's counters lag */
    printf("MemAvailable taken per VM: %.1f MiB\n",
           (double)(before_kb - meminfo_kb("MemAvailable:")) / 1024 / n);
    for (unsigned i = 0; i <= n; i++)
        clone_destroy(&w, &clones[i]);
    g_free(clones);
    world_close(&w);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "launcher") == 0)
        return sp_launcher_main(SP_LAUNCHER_FD);
    const char *why_not = world_missing();
    if (why_not || argc != 3) {
        fprintf(stderr, "%s\n", why_not ? why_not : "usage: microvm_bench CREATES VMS_AT_ONCE");
        return 1;
    }
    bench((unsigned)g_ascii_strtoull(argv[1], NULL, 10));
    density((unsigned)g_ascii_strtoull(argv[2], NULL, 10));
    return 0;
}
