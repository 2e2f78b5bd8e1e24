/* The pools over a driver of the test's own, whose agents are threads. */
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "disk/tree.h"
#include "driver/record.h"
#include "node/drivers.h"
#include "node/pool.h"
#include "node/table.h"
#include "toy_driver.h"

#define DIGEST_HEX "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

/* --- a node without a server */

struct world {
    char *state;
    struct sp_worker_config config;
    struct sp_node node;
    struct toy_driver *driver;
    struct sp_sandbox_spec *spec;
    struct sp_pool *pool;
};

static void make_dir(const char *root, const char *path)
{
    g_autofree char *dir = g_build_filename(root, path, NULL);
    g_assert_cmpint(g_mkdir_with_parents(dir, 0700), ==, 0);
}

static struct sp_sandbox_spec *make_spec(void)
{
    json_t *row = json_pack("{s:s,s:s,s:s,s:{s:f,s:i,s:i,s:i}}", "template_digest",
                            "sha256:" DIGEST_HEX, "isolation", "container", "hostname", "box",
                            "resources", "cpus", 1.0, "memory_mb", 256, "disk_mb", 512, "pids", 64);
    struct sp_sandbox_spec *spec = sp_sandbox_spec_decode(row, NULL);
    json_decref(row);
    g_assert_nonnull(spec);
    return spec;
}

static void world_init(struct world *w, unsigned min, unsigned max)
{
    static const char config[] =
        "{\"format\":1,\"name\":\"toy\",\"user\":\"root\",\"workdir\":\"/\","
        "\"env\":{},\"ready\":[],\"packages\":[]}";
    *w = (struct world){.state = g_dir_make_tmp("space-pool-XXXXXX", NULL)};
    make_dir(w->state, "data/templates/" DIGEST_HEX); /* so the volume stays a plain directory */
    make_dir(w->state, "run/sandboxes");
    g_autofree char *path =
        g_build_filename(w->state, "data/templates/" DIGEST_HEX "/config.json", NULL);
    g_assert_true(g_file_set_contents(path, config, -1, NULL));
    w->config = (struct sp_worker_config){.state_dir = w->state, .pool_min = min, .pool_max = max};
    w->node.config = &w->config;
    w->node.sandbox_root = g_build_filename(w->state, "run/sandboxes", NULL);
    w->node.volume = sp_volume_open(w->state, 0, NULL);
    g_assert_nonnull(w->node.volume);
    w->node.table = sp_table_new();
    w->node.drivers = sp_drivers_new();
    w->driver = toy_driver_new();
    sp_drivers_add(w->node.drivers, &w->driver->base);
    sp_drivers_probe(w->node.drivers, NULL, NULL);
    w->spec = make_spec();
}

static void world_start(struct world *w)
{
    w->pool = sp_pool_new(&w->node);
    sp_pool_start(w->pool);
}

static unsigned n_entries(struct world *w, const char *folder)
{
    g_autofree char *path = g_build_filename(w->state, "run", folder, NULL);
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    unsigned n = 0;
    while (dir && g_dir_read_name(dir))
        n++;
    return n;
}

static void world_stop(struct world *w)
{
    g_atomic_int_set(&w->node.stopping, 1);
    g_assert_true(sp_pool_stop(w->pool, 10000));
    g_assert_cmpuint(n_entries(w, "pool"), ==, 0);
    sp_pool_free(w->pool);
    w->pool = NULL;
}

static void world_clear(struct world *w)
{
    if (w->pool)
        world_stop(w);
    sp_sandbox_spec_unref(w->spec);
    sp_drivers_free(w->node.drivers);
    sp_table_free(w->node.table);
    sp_volume_close(w->node.volume);
    sp_tree_remove(w->state);
    g_free(w->node.sandbox_root);
    g_free(w->state);
}

/* The numbers of the only key. */
static int64_t number(struct world *w, const char *name)
{
    g_autoptr(json_t) list = sp_pool_to_json(w->pool);
    return json_integer_value(json_object_get(json_array_get(list, 0), name));
}

static bool wait_number(struct world *w, const char *name, int64_t value)
{
    for (int i = 0; i < 1000 && number(w, name) != value; i++)
        g_usleep(10000);
    return number(w, name) == value;
}

/* A create that was made to run; then there is a pool for its key. */
static void demand(struct world *w, unsigned n)
{
    while (n-- > 0) {
        sp_pool_create_began(w->pool, w->spec);
        sp_pool_create_ended(w->pool, w->spec, true);
    }
}

/* --- a create */

struct claimed {
    char id[SP_ID_MAX];
    char *run_dir;
    struct sp_making making;
    bool done;
};

static void on_gone(void *user)
{
    g_atomic_int_set((gint *)user, 1);
}

static void claim(struct world *w, struct claimed *c, gint *gone)
{
    sp_id_new("sbx", c->id);
    c->run_dir = g_build_filename(w->node.sandbox_root, c->id, NULL);
    c->making = (struct sp_making){.node = &w->node,
                                   .id = c->id,
                                   .run_dir = c->run_dir,
                                   .spec = w->spec,
                                   .on_gone = on_gone,
                                   .gone_user = gone};
    sp_pool_create_began(w->pool, w->spec);
    g_assert_true(sp_making_template(&c->making, NULL));
    c->done = sp_pool_claim(w->pool, &c->making);
    sp_pool_create_ended(w->pool, w->spec, true);
    g_assert_cmpint(access(c->run_dir, F_OK) == 0, ==, c->done);
    if (c->done) {
        g_autofree char *ready = g_build_filename(c->run_dir, "ready", NULL);
        g_assert_cmpint(access(ready, F_OK), ==, 0);
        g_assert_nonnull(c->making.link);
        g_assert_true(sp_link_ping(c->making.link, sp_time_monotonic_us() + 5000000, NULL));
    } else {
        g_assert_null(c->making.link);
        g_assert_null(c->making.instance);
    }
}

static void unclaim(struct world *w, struct claimed *c)
{
    if (c->done) {
        sp_link_stop(c->making.link, NULL);
        sp_link_unref(c->making.link);
        toy_free(c->making.instance);
        g_assert_cmpint(sp_tree_remove(c->run_dir), ==, 0);
        g_mutex_lock(&w->node.table->lock);
        sp_slots_release(&w->node.table->slots, c->making.slot);
        g_mutex_unlock(&w->node.table->lock);
    }
    sp_making_clear(&c->making);
    g_free(c->run_dir);
    *c = (struct claimed){.done = false};
}

/* --- tests */

static void test_off(void)
{
    struct world w;
    struct claimed c = {.done = false};
    world_init(&w, 2, 0);
    world_start(&w);
    demand(&w, 5);
    claim(&w, &c, NULL);
    g_assert_false(c.done);
    unclaim(&w, &c);
    g_autoptr(json_t) list = sp_pool_to_json(w.pool);
    g_assert_cmpuint(json_array_size(list), ==, 0);
    g_assert_cmpuint(w.driver->creates, ==, 0);
    world_clear(&w);
}

static void test_fills_after_first_use(void)
{
    struct world w;
    struct claimed c = {.done = false};
    gint gone = 0;
    world_init(&w, 2, 8);
    world_start(&w);
    claim(&w, &c, &gone);
    g_assert_false(c.done); /* the first */
    unclaim(&w, &c);
    g_assert_true(wait_number(&w, "ready", 2));
    g_assert_cmpuint(n_entries(&w, "pool"), ==, 2);
    claim(&w, &c, &gone);
    g_assert_true(c.done);
    g_assert_true(wait_number(&w, "ready", 2)); /* filled again */
    g_assert_cmpint(number(&w, "hits"), ==, 1);
    g_assert_cmpint(number(&w, "misses"), ==, 1);
    g_assert_cmpuint(n_entries(&w, "sandboxes"), ==, 1);
    /* It is the sandbox's now: its end is told to it, and stopping the pools does not touch it. */
    world_stop(&w);
    g_assert_cmpuint(n_entries(&w, "sandboxes"), ==, 1);
    g_assert_true(sp_link_ping(c.making.link, sp_time_monotonic_us() + 5000000, NULL));
    g_assert_cmpint(eventfd_write(((struct toy *)c.making.instance)->end_fd, 1), ==, 0);
    for (int i = 0; i < 500 && !g_atomic_int_get(&gone); i++)
        g_usleep(10000);
    g_assert_cmpint(g_atomic_int_get(&gone), ==, 1);
    g_assert_cmpuint(w.node.table->slots.n_used, ==, 1);
    unclaim(&w, &c);
    g_assert_cmpuint(w.node.table->slots.n_used, ==, 0);
    world_clear(&w);
}

static void *claim_thread(void *data)
{
    void **arguments = data;
    claim(arguments[0], arguments[1], NULL);
    return NULL;
}

/* Many at once, again and again: none gets what another has. */
static void test_claims_are_exclusive(void)
{
    enum { THREADS = 6, ROUNDS = 100 };
    struct world w;
    world_init(&w, 3, 3);
    world_start(&w);
    demand(&w, 1);
    unsigned claimed = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct claimed c[THREADS] = {0};
        void *arguments[THREADS][2];
        GThread *threads[THREADS];
        g_assert_true(wait_number(&w, "ready", 3));
        for (unsigned i = 0; i < THREADS; i++) {
            arguments[i][0] = &w;
            arguments[i][1] = &c[i];
            threads[i] = g_thread_new("claim", claim_thread, arguments[i]);
        }
        for (unsigned i = 0; i < THREADS; i++)
            g_thread_join(threads[i]);
        for (unsigned i = 0; i < THREADS; i++) {
            claimed += c[i].done;
            for (unsigned j = 0; j < i; j++) {
                g_assert_true(!c[i].done || c[i].making.instance != c[j].making.instance);
                g_assert_true(!c[i].done || !c[j].done || c[i].making.slot != c[j].making.slot);
            }
        }
        for (unsigned i = 0; i < THREADS; i++)
            unclaim(&w, &c[i]);
    }
    g_assert_cmpuint(claimed, >=, 3 * ROUNDS);
    world_clear(&w);
    g_test_message("%u of %u claims had a member", claimed, THREADS * ROUNDS);
}

/* Does something to all members that wait. */
static void to_all(struct world *w, void (*fn)(struct toy *toy))
{
    GHashTableIter iter;
    void *value;
    g_mutex_lock(&w->driver->lock);
    g_hash_table_iter_init(&iter, w->driver->instances);
    while (g_hash_table_iter_next(&iter, NULL, &value))
        fn(value);
    g_mutex_unlock(&w->driver->lock);
}

static void end(struct toy *toy)
{
    g_assert_cmpint(eventfd_write(toy->end_fd, 1), ==, 0);
}

static void mute(struct toy *toy)
{
    g_atomic_int_set(&toy->mute, 1);
}

static void test_dead_members_are_replaced(void)
{
    struct world w;
    struct claimed c = {.done = false};
    world_init(&w, 3, 3);
    world_start(&w);
    demand(&w, 1);
    g_assert_true(wait_number(&w, "ready", 3));
    to_all(&w, end);
    claim(&w, &c, NULL); /* whatever it gets works: claim() has asked it */
    unclaim(&w, &c);
    for (int i = 0; i < 500 && w.driver->creates < 6; i++)
        g_usleep(10000);
    g_assert_cmpuint(w.driver->creates, >=, 6);
    g_assert_true(wait_number(&w, "ready", 3));
    g_assert_cmpuint(n_entries(&w, "pool"), ==, 3);
    world_clear(&w);
}

/* Members that live but do not answer cost a create some seconds, not more. */
static void test_hung_members_are_given_up(void)
{
    struct world w;
    struct claimed c = {.done = false};
    world_init(&w, 2, 2);
    world_start(&w);
    demand(&w, 1);
    g_assert_true(wait_number(&w, "ready", 2));
    to_all(&w, mute);
    int64_t began = sp_time_monotonic_ms();
    claim(&w, &c, NULL);
    g_assert_false(c.done);
    g_assert_cmpint(sp_time_monotonic_ms() - began, <, 9000);
    g_assert_cmpint(number(&w, "hits"), ==, 0);
    unclaim(&w, &c);
    g_assert_true(wait_number(&w, "ready", 2));
    claim(&w, &c, NULL);
    g_assert_true(c.done);
    unclaim(&w, &c);
    world_clear(&w);
}

static void test_refused_claim(void)
{
    struct world w;
    struct claimed c = {.done = false};
    world_init(&w, 2, 2);
    world_start(&w);
    demand(&w, 1);
    g_assert_true(wait_number(&w, "ready", 2));
    w.driver->refuse_claim = true;
    claim(&w, &c, NULL);
    g_assert_false(c.done);
    unclaim(&w, &c);
    world_clear(&w);
}

/* A key whose members cannot be made is tried less and less. */
static void test_failing_makes_back_off(void)
{
    struct world w;
    world_init(&w, 2, 2);
    w.driver->refuse_create = true;
    world_start(&w);
    demand(&w, 1);
    g_usleep(4500000);
    unsigned tries = w.driver->creates;
    g_assert_cmpuint(tries, >=, 2);
    g_assert_cmpuint(tries, <=, 8);
    g_assert_cmpint(number(&w, "ready"), ==, 0);
    world_clear(&w);
}

static void test_template_goes(void)
{
    struct world w;
    world_init(&w, 3, 3);
    w.driver->create_us = 50000;
    world_start(&w);
    demand(&w, 1);
    for (int i = 0; i < 1000 && number(&w, "ready") == 0; i++)
        g_usleep(10000);
    g_assert_cmpint(number(&w, "ready"), >=, 1); /* and perhaps more are being made */
    g_assert_true(sp_pool_forget_template(w.pool, "sha256:" DIGEST_HEX, NULL));
    g_assert_cmpuint(n_entries(&w, "pool"), ==, 0);
    unsigned creates = w.driver->creates;
    g_usleep(1500000);
    g_assert_cmpuint(w.driver->creates, ==, creates);
    demand(&w, 1); /* it has come again */
    g_assert_true(wait_number(&w, "ready", 3));
    world_clear(&w);
}

/* What an earlier worker has left goes, and its block of uids is not given out before. */
static void test_leftovers(void)
{
    struct world w;
    world_init(&w, 2, 2);
    struct sp_record record = {.id = (char *)"sbx_01j00000000000000000000000",
                               .tier = (char *)"container",
                               .slot = 5,
                               .started = true};
    static const char *const names[] = {"pool_01j00000000000000000000000",
                                        "pool_01j00000000000000000000001"};
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *path = g_build_filename("run/pool", names[i], NULL);
        make_dir(w.state, path);
    }
    g_autofree char *first = g_build_filename(w.state, "run/pool", names[0], NULL);
    g_assert_true(sp_record_save(first, &record, NULL)); /* the second was never made */
    w.pool = sp_pool_new(&w.node);
    g_assert_cmpuint(w.node.table->slots.n_used, ==, 1);
    g_assert_false(sp_slots_claim(&w.node.table->slots, 5));
    sp_pool_start(w.pool);
    for (int i = 0; i < 500 && n_entries(&w, "pool") > 0; i++)
        g_usleep(10000);
    g_assert_cmpuint(n_entries(&w, "pool"), ==, 0);
    g_assert_true(sp_pool_forget_template(w.pool, "sha256:" DIGEST_HEX, NULL));
    g_assert_cmpuint(w.node.table->slots.n_used, ==, 0);
    g_assert_cmpuint(w.driver->destroys, ==, 1);
    world_clear(&w);
}

/* More creates than members: those that find none are told so, and the pool grows up to its limit.
 */
static void test_burst(void)
{
    enum { BURST = 100 };
    struct world w;
    world_init(&w, 10, 10);
    world_start(&w);
    demand(&w, 1);
    g_assert_true(
        wait_number(&w, "ready", 10)); /* at first; later fills begin below the low mark */
    static struct claimed c[BURST];
    unsigned done = 0;
    for (unsigned i = 0; i < BURST; i++) {
        claim(&w, &c[i], NULL);
        done += c[i].done;
    }
    g_assert_cmpuint(done, >=, 10);
    g_assert_cmpint(number(&w, "hits"), ==, done);
    g_assert_cmpint(number(&w, "misses"), ==, BURST - done);
    for (unsigned i = 0; i < BURST; i++)
        unclaim(&w, &c[i]);
    for (int i = 0; i < 1000 && number(&w, "ready") < number(&w, "low"); i++)
        g_usleep(10000);
    g_assert_cmpint(number(&w, "ready"), >=, number(&w, "low"));
    world_clear(&w);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/node/pool/off", test_off);
    g_test_add_func("/node/pool/first_use", test_fills_after_first_use);
    g_test_add_func("/node/pool/exclusive", test_claims_are_exclusive);
    g_test_add_func("/node/pool/dead", test_dead_members_are_replaced);
    g_test_add_func("/node/pool/hung", test_hung_members_are_given_up);
    g_test_add_func("/node/pool/refused", test_refused_claim);
    g_test_add_func("/node/pool/back_off", test_failing_makes_back_off);
    g_test_add_func("/node/pool/template", test_template_goes);
    g_test_add_func("/node/pool/leftovers", test_leftovers);
    g_test_add_func("/node/pool/burst", test_burst);
    return g_test_run();
}
