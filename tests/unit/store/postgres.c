/* What only PostgreSQL has: lost connections, several servers, notifications, foreign settings. */
#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "fixture.h"
#include "store/db.h"
#include "store/where.h"

#define CUT                                                                                        \
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"                                 \
    " WHERE pid <> pg_backend_pid() AND datname = current_database() AND "

static void cut_all(void)
{
    fixture_sql(CUT "backend_type = 'client backend'");
}

static void test_url(void)
{
    g_assert_true(sp_where_is_url("postgres://h/x") && sp_where_is_url("postgresql:///x"));
    g_assert_false(sp_where_is_url("/var/lib/space/space.db"));
    g_autofree char *shown =
        sp_where_describe("postgresql://me:se%20same@h:1/x?options=-cfoo%3Dbar");
    g_assert_cmpstr(shown, ==, "postgresql://h:1/x");
    g_assert_true(sp_where_has_password("postgresql://me:sesame@h:1/x"));
    g_assert_true(sp_where_has_password("postgresql://me@h:1/x?password=sesame"));
    g_assert_false(sp_where_has_password("postgresql://me@h:1/x"));
    static const char one[] = "postgresql://me:sesame@h:1/x?options=-csearch_path%3Da";
    g_assert_true(sp_where_same(one, "postgres://you@h:1/x?sslmode=require"
                                     "&options=-csearch_path%3Da"));
    static const char *const others[] = {"postgresql://me@h:1/x?options=-csearch_path%3Db",
                                         "postgresql://me@h:1/x", "postgresql://me@h:1/y",
                                         "postgresql://me@g:1/x", "/var/lib/space/space.db"};
    for (size_t i = 0; i < G_N_ELEMENTS(others); i++)
        g_assert_false(sp_where_same(one, others[i]));
    static const char *const wrong[] = {"postgresql://me:sesa%me@h/x",
                                        "postgresql://me:sesame@[h/x",
                                        "postgresql://me:sesame@h/x?nonsense=1"};
    for (size_t i = 0; i < G_N_ELEMENTS(wrong); i++) {
        g_autoptr(GError) error = NULL;
        g_assert_false(sp_where_check(wrong[i], &error));
        g_assert_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST);
        g_assert_null(strstr(error->message, "sesa"));
        g_autofree char *nothing = sp_where_describe(wrong[i]);
        g_assert_null(strstr(nothing, "sesa"));
    }
}

static void test_unreachable(void)
{
    g_autoptr(GError) error = NULL;
    g_assert_null(sp_store_open("postgresql://me:sesame@/x?host=/nonexistent", &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_assert_nonnull(strstr(error->message, "/nonexistent"));
    g_assert_null(strstr(error->message, "sesame"));
}

static void test_encoding_is_refused(void)
{
    fixture_sql("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE_PROVIDER libc"
                " LOCALE 'C'");
    g_autofree char *url = g_strdup(g_getenv("SPACE_TEST_POSTGRES"));
    g_auto(GStrv) parts = g_strsplit(url, "/postgres?", 2);
    g_autofree char *latin = g_strjoinv("/latin?", parts);
    g_autoptr(GError) error = NULL;
    g_assert_null(sp_store_open(latin, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED);
    g_assert_nonnull(strstr(error->message, "LATIN1"));
    fixture_sql("DROP DATABASE latin");
}

static void test_collation_is_refused(struct fixture *f, gconstpointer data)
{
    sp_store_close(f->store);
    f->store = NULL;
    fixture_sql("ALTER TABLE server.operations ALTER COLUMN id TYPE TEXT COLLATE \"default\"");
    g_autoptr(GError) error = NULL;
    g_assert_null(sp_store_open(f->where, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    g_assert_nonnull(strstr(error->message, "operations"));
}

/* The premise of /db/order_is_bytewise: this database would sort otherwise by itself. */
static void test_database_sorts_otherwise(struct fixture *f, gconstpointer data)
{
    struct sp_db *db = sp_db_open(f->where, NULL);
    {
        SP_DB_TX_AUTO *tx = sp_db_begin(db, SP_DB_READ, NULL);
        SP_DB_ROWS_AUTO *rows = sp_db_query(tx, NULL, "SELECT 'a' < 'B'", "");
        g_assert_cmpint(sp_db_next(rows, NULL), ==, 1);
        g_assert_cmpint(sp_db_int(rows, 0), ==, 1);
    }
    sp_db_close(db);
}

static void test_lost_while_idle(struct fixture *f, gconstpointer data)
{
    struct sp_replay made = fixture_create(f, "{}", NULL);
    for (int i = 0; i < 3; i++) {
        sp_sandbox_row_free(fixture_sandbox(f, made.resource_id));
        cut_all();
        sp_sandbox_row_free(fixture_sandbox(f, made.resource_id));
        cut_all();
        fixture_create(f, "{}", NULL);
    }
}

static int64_t counter(struct sp_db *db)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(db, SP_DB_READ, NULL);
    SP_DB_ROWS_AUTO *rows = sp_db_query(tx, NULL, "SELECT value FROM counters", "");
    g_assert_cmpint(sp_db_next(rows, NULL), ==, 1);
    return sp_db_int(rows, 0);
}

/* Lost under a transaction: a statement and the commit fail, nothing is half done, and the next one
 * has a new connection. */
static void test_lost_in_transaction(struct fixture *f, gconstpointer data)
{
    struct sp_db *db = sp_db_open(f->where, NULL);
    struct sp_db_tx *tx = sp_db_begin(db, SP_DB_WRITE, NULL);
    g_assert_true(sp_db_run(tx, NULL, NULL, "UPDATE counters SET value = 1", ""));
    cut_all();
    g_autoptr(GError) error = NULL;
    g_assert_false(sp_db_run(tx, NULL, &error, "UPDATE counters SET value = 2", ""));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    sp_db_rollback(tx);
    g_assert_cmpint(counter(db), ==, 0);

    tx = sp_db_begin(db, SP_DB_WRITE, NULL);
    g_assert_true(sp_db_run(tx, NULL, NULL, "UPDATE counters SET value = 3", ""));
    cut_all();
    g_clear_error(&error);
    g_assert_false(sp_db_commit(tx, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_assert_nonnull(strstr(error->message, "not known"));
    g_assert_cmpint(counter(db), ==, 0);

    tx = sp_db_begin(db, SP_DB_WRITE, NULL);
    g_assert_true(sp_db_run(tx, NULL, NULL, "UPDATE counters SET value = 4", ""));
    g_assert_true(sp_db_commit(tx, NULL));
    g_assert_cmpint(counter(db), ==, 4);
    sp_db_close(db);
}

static void test_reading_does_not_write(struct fixture *f, gconstpointer data)
{
    struct sp_db *db = sp_db_open(f->where, NULL);
    {
        SP_DB_TX_AUTO *tx = sp_db_begin(db, SP_DB_READ, NULL);
        g_assert_false(sp_db_run(tx, NULL, NULL, "UPDATE counters SET value = 1", ""));
    }
    g_assert_cmpint(counter(db), ==, 0);
    sp_db_close(db);
}

static gpointer read_counter(gpointer db)
{
    return GINT_TO_POINTER((int)counter(db) + 1);
}

static void test_pool_is_bounded(struct fixture *f, gconstpointer data)
{
    struct sp_db *db = sp_db_open(f->where, NULL);
    struct sp_db_tx *open[12];
    for (size_t i = 0; i < G_N_ELEMENTS(open); i++)
        open[i] = sp_db_begin(db, SP_DB_READ, NULL);
    GThread *thread = g_thread_new("reader", read_counter, db);
    g_usleep(100 * 1000);
    for (size_t i = 0; i < G_N_ELEMENTS(open); i++)
        sp_db_rollback(open[i]);
    g_assert_cmpint(GPOINTER_TO_INT(g_thread_join(thread)), ==, 1);
    sp_db_close(db);
}

/* A server that was stopped in a transaction does not hold up the others for ever, and learns of
 * it. */
static void test_stuck_writer(struct fixture *f, gconstpointer data)
{
    struct sp_db *stuck = sp_db_open(f->where, NULL), *db = sp_db_open(f->where, NULL);
    struct sp_db_tx *held = sp_db_begin(stuck, SP_DB_WRITE, NULL);
    g_assert_true(sp_db_run(held, NULL, NULL, "UPDATE counters SET value = 1", ""));
    int64_t begun = sp_time_monotonic_ms();
    struct sp_db_tx *tx = sp_db_begin(db, SP_DB_WRITE, NULL);
    g_assert_nonnull(tx);
    g_assert_cmpint(sp_time_monotonic_ms() - begun, >=, 3000); /* it did wait for the other one */
    g_assert_true(sp_db_run(tx, NULL, NULL, "UPDATE counters SET value = 2", ""));
    g_assert_true(sp_db_commit(tx, NULL));
    g_autoptr(GError) error = NULL;
    g_assert_false(sp_db_commit(held, &error));
    g_assert_cmpint(counter(db), ==, 2);
    sp_db_close(stuck);
    sp_db_close(db);
}

static gpointer open_once(gpointer where)
{
    g_autoptr(GError) error = NULL;
    struct sp_store *store = sp_store_open(where, &error);
    g_assert_no_error(error);
    return store;
}

static void test_start_at_once(struct fixture *f, gconstpointer data)
{
    for (int i = 0; i < 4; i++) {
        g_autofree char *where = fixture_empty(f, "fresh");
        GThread *threads[4];
        for (size_t t = 0; t < G_N_ELEMENTS(threads); t++)
            threads[t] = g_thread_new("opener", open_once, where);
        for (size_t t = 0; t < G_N_ELEMENTS(threads); t++)
            sp_store_close(g_thread_join(threads[t]));
    }
}

#define N_EACH 40

static gpointer create_many(gpointer data)
{
    struct fixture *f = data;
    for (int i = 0; i < N_EACH; i++)
        fixture_create(f, "{}", NULL);
    return NULL;
}

/* Revisions come in the order of their commits, whichever server makes them: a worker that reads on
 * from the last one misses nothing. */
static void test_writers_of_two_servers(struct fixture *f, gconstpointer data)
{
    struct fixture second = {.store = sp_store_open(f->where, NULL)};
    GThread *threads[6];
    for (size_t t = 0; t < G_N_ELEMENTS(threads); t++)
        threads[t] = g_thread_new("writer", create_many, t % 2 ? f : &second);
    int64_t after = 0, seen = 0;
    while (seen < (int64_t)G_N_ELEMENTS(threads) * N_EACH) {
        struct sp_desired_set set;
        g_assert_true(
            sp_store_desired(seen % 2 ? f->store : second.store, "local", after, &set, NULL));
        for (unsigned i = 0; i < set.sandboxes->len; i++)
            g_assert_cmpint(((struct sp_sandbox_row *)set.sandboxes->pdata[i])->revision, ==,
                            after + 1 + i);
        seen += set.sandboxes->len;
        after = set.revision;
        sp_desired_set_clear(&set);
    }
    for (size_t t = 0; t < G_N_ELEMENTS(threads); t++)
        g_thread_join(threads[t]);
    sp_store_close(second.store);
}

/* One and the same Idempotency-Key at two servers at once. */
static gpointer create_with_key(gpointer where)
{
    struct fixture f = {.store = sp_store_open(where, NULL)};
    struct sp_replay made = fixture_create(&f, "{}", "once");
    sp_store_close(f.store);
    return g_strdup(made.resource_id);
}

static void test_key_at_two_servers(struct fixture *f, gconstpointer data)
{
    GThread *threads[6];
    g_autofree char *first = NULL;
    for (size_t t = 0; t < G_N_ELEMENTS(threads); t++)
        threads[t] = g_thread_new("client", create_with_key, f->where);
    for (size_t t = 0; t < G_N_ELEMENTS(threads); t++) {
        g_autofree char *id = g_thread_join(threads[t]);
        if (!first)
            first = g_strdup(id);
        g_assert_cmpstr(id, ==, first);
    }
}

/* Publishes at `from` until `to` has heard of it. */
static void expect_heard(struct sp_store *from, struct sp_store *to, const char *topic)
{
    uint64_t ticket = sp_store_ticket(to, topic);
    int64_t deadline = sp_time_monotonic_ms() + 20000;
    while (sp_store_ticket(to, topic) == ticket) {
        g_assert_cmpint(sp_time_monotonic_ms(), <, deadline);
        sp_store_publish(from, topic);
        g_usleep(50 * 1000);
    }
}

static void test_other_server_hears(struct fixture *f, gconstpointer data)
{
    struct sp_store *other = sp_store_open(f->where, NULL);
    expect_heard(f->store, other, "op_1");
    expect_heard(other, f->store, "op_1");
    /* both listen now: one publication is enough, and there is no piece of a second to wait for */
    g_usleep(300 * 1000);
    for (int i = 0; i < 5; i++) {
        uint64_t ticket = sp_store_ticket(other, "op_2");
        int64_t begun = sp_time_monotonic_ms();
        sp_store_publish(f->store, "op_2");
        sp_store_wait(other, "op_2", ticket, begun + 20000);
        g_assert_cmpint(sp_store_ticket(other, "op_2"), !=, ticket);
    }
    /* a flood of topics arrives as a whole */
    uint64_t ticket = sp_store_ticket(other, "op_last");
    for (int i = 0; i < 3000; i++) {
        g_autofree char *topic = g_strdup_printf("op_%026d", i);
        sp_store_publish(f->store, topic);
    }
    sp_store_publish(f->store, "op_last");
    int64_t deadline = sp_time_monotonic_ms() + 10000;
    while (sp_store_ticket(other, "op_last") == ticket) {
        g_assert_cmpint(sp_time_monotonic_ms(), <, deadline);
        g_usleep(5000);
    }
    sp_store_close(other);
}

static void test_lost_notification(struct fixture *f, gconstpointer data)
{
    struct sp_store *other = sp_store_open(f->where, NULL);
    expect_heard(f->store, other, "op_1");
    uint64_t ticket = sp_store_ticket(other, "op_quiet");
    int64_t begun = sp_time_monotonic_ms();
    sp_store_wait(other, "op_quiet", ticket, begun + 20000);
    g_assert_cmpint(sp_time_monotonic_ms() - begun, <, 10000); /* to look again */
    cut_all();
    expect_heard(f->store, other, "op_1"); /* both have connected again */
    sp_store_close(other);
}

#define ADD(path, fn) g_test_add(path, struct fixture, NULL, fixture_set_up, fn, fixture_tear_down)

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/postgres/url", test_url);
    g_test_add_func("/postgres/unreachable", test_unreachable);
    g_test_add_func("/postgres/encoding_is_refused", test_encoding_is_refused);
    ADD("/postgres/collation_is_refused", test_collation_is_refused);
    ADD("/postgres/database_sorts_otherwise", test_database_sorts_otherwise);
    ADD("/postgres/lost_while_idle", test_lost_while_idle);
    ADD("/postgres/lost_in_transaction", test_lost_in_transaction);
    ADD("/postgres/reading_does_not_write", test_reading_does_not_write);
    ADD("/postgres/pool_is_bounded", test_pool_is_bounded);
    ADD("/postgres/stuck_writer", test_stuck_writer);
    ADD("/postgres/start_at_once", test_start_at_once);
    ADD("/postgres/writers_of_two_servers", test_writers_of_two_servers);
    ADD("/postgres/key_at_two_servers", test_key_at_two_servers);
    ADD("/postgres/other_server_hears", test_other_server_hears);
    ADD("/postgres/lost_notification", test_lost_notification);
    return g_test_run();
}
