/* Leases between two stores on one database, as two servers have it. */
#include "base/error.h"
#include "base/time.h"
#include "fixture.h"

#define TTL_MS 300

static bool take(struct sp_store *store, int64_t ttl_ms)
{
    bool held = false;
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_store_lease_take(store, "test", ttl_ms, &held, &error));
    g_assert_no_error(error);
    return held;
}

static void test_one_at_a_time(struct fixture *f, gconstpointer data)
{
    struct sp_store *other = sp_store_open(f->where, NULL);
    g_assert_true(take(f->store, 20000));
    g_assert_false(take(other, 20000));
    g_assert_true(take(f->store, 20000));  /* renewed */
    sp_store_lease_release(other, "test"); /* not its own: stays */
    g_assert_false(take(other, 20000));
    sp_store_lease_release(f->store, "test");
    g_assert_true(take(other, 20000));
    g_assert_false(take(f->store, 20000));
    sp_store_close(other);
}

static void test_runs_out(struct fixture *f, gconstpointer data)
{
    struct sp_store *other = sp_store_open(f->where, NULL);
    int64_t begun = sp_time_monotonic_ms();
    g_assert_true(take(f->store, TTL_MS));
    g_assert_false(take(other, 20000));
    while (!take(other, 20000)) {
        g_assert_cmpint(sp_time_monotonic_ms() - begun, <, 20000);
        g_usleep(10000);
    }
    g_assert_cmpint(sp_time_monotonic_ms() - begun, >=, TTL_MS - 2);
    g_assert_false(take(f->store, 20000)); /* it has come too late to renew */
    sp_store_close(other);
}

/* Nobody takes over a process's lease by having its place: a restarted server is another holder. */
static void test_restart_is_another_holder(struct fixture *f, gconstpointer data)
{
    g_assert_true(take(f->store, 20000));
    fixture_reopen(f);
    g_assert_false(take(f->store, 20000));
}

static gpointer take_once(gpointer where)
{
    struct sp_store *store = sp_store_open(where, NULL);
    bool held = take(store, 60000);
    sp_store_close(store);
    return GINT_TO_POINTER(held);
}

static void test_race(struct fixture *f, gconstpointer data)
{
    GThread *threads[8];
    int n = 0;
    for (size_t i = 0; i < G_N_ELEMENTS(threads); i++)
        threads[i] = g_thread_new("taker", take_once, f->where);
    for (size_t i = 0; i < G_N_ELEMENTS(threads); i++)
        n += GPOINTER_TO_INT(g_thread_join(threads[i]));
    g_assert_cmpint(n, ==, 1);
}

/* A server that was stopped for a while, and does not know that its time is over. */
static void test_sweep_is_fenced(struct fixture *f, gconstpointer data)
{
    struct sp_store *other = sp_store_open(f->where, NULL);
    struct sp_sweep_result result;
    bool held;
    g_assert_true(sp_store_lease_take(other, SP_LEASE_CONTROLLER, 20000, &held, NULL) && held);
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_store_sweep(other, sp_time_now_ms(), &result, NULL));
    bool swept = sp_store_sweep(f->store, sp_time_now_ms(), &result, &error);
    g_assert_true(swept == !sp_store_shared(f->store));
    if (!swept)
        g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    sp_store_close(other);
}

#define ADD(path, fn) g_test_add(path, struct fixture, NULL, fixture_set_up, fn, fixture_tear_down)

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    ADD("/leases/one_at_a_time", test_one_at_a_time);
    ADD("/leases/runs_out", test_runs_out);
    ADD("/leases/restart_is_another_holder", test_restart_is_another_holder);
    ADD("/leases/race", test_race);
    ADD("/leases/sweep_is_fenced", test_sweep_is_fenced);
    return g_test_run();
}
