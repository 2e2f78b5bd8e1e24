/* The database interface, migrations and the change notification. */
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/time.h"
#include "fixture.h"
#include "store/db.h"

static void test_parameters_go_by_number(struct fixture *f, gconstpointer data)
{
    g_autofree char *where = fixture_empty(f, "plain");
    struct sp_db *db = sp_db_open(where, NULL);
    g_assert_nonnull(db);
    {
        SP_DB_TX_AUTO *tx = sp_db_begin(db, SP_DB_WRITE, NULL);
        SP_DB_ROWS_AUTO *rows =
            sp_db_query(tx, NULL, "SELECT $2, $1, $2, $3", "iti", (int64_t)7, NULL, (int64_t)-1);
        g_assert_cmpint(sp_db_next(rows, NULL), ==, 1);
        g_assert_null(sp_db_text(rows, 0));
        g_assert_cmpint(sp_db_int(rows, 1), ==, 7);
        g_assert_cmpint(sp_db_int(rows, 3), ==, -1);
        g_assert_cmpint(sp_db_next(rows, NULL), ==, 0);
    }
    sp_db_close(db);
}

static void test_rollback_and_nesting(struct fixture *f, gconstpointer data)
{
    struct sp_db *db = sp_db_open(f->where, NULL);
    {
        SP_DB_TX_AUTO *tx = sp_db_begin(db, SP_DB_WRITE, NULL);
        g_assert_true(sp_db_run(tx, NULL, NULL, "UPDATE counters SET value = 99", ""));
        /* the same statement twice at once */
        SP_DB_ROWS_AUTO *a = sp_db_query(tx, NULL, "SELECT value FROM counters", "");
        g_assert_cmpint(sp_db_next(a, NULL), ==, 1);
        SP_DB_ROWS_AUTO *b = sp_db_query(tx, NULL, "SELECT value FROM counters", "");
        g_assert_cmpint(sp_db_next(b, NULL), ==, 1);
        g_assert_cmpint(sp_db_int(b, 0), ==, 99);
        g_assert_cmpint(sp_db_int(a, 0), ==, 99);
    } /* not committed */
    {
        SP_DB_TX_AUTO *tx = sp_db_begin(db, SP_DB_READ, NULL);
        SP_DB_ROWS_AUTO *rows = sp_db_query(tx, NULL, "SELECT value FROM counters", "");
        g_assert_cmpint(sp_db_next(rows, NULL), ==, 1);
        g_assert_cmpint(sp_db_int(rows, 0), ==, 0);
    }
    {
        SP_DB_TX_AUTO *tx = sp_db_begin(db, SP_DB_WRITE, NULL);
        g_autoptr(GError) error = NULL;
        g_assert_false(sp_db_run(tx, NULL, &error, "INSERT INTO nowhere VALUES (1)", ""));
        g_assert_error(error, SP_ERROR, SP_ERROR_INTERNAL);
    }
    sp_db_close(db);
}

/* Whatever went wrong before in the transaction, a commit that says yes has done all of it. */
static void test_no_half_commit(struct fixture *f, gconstpointer data)
{
    struct sp_db *db = sp_db_open(f->where, NULL);
    struct sp_db_tx *tx = sp_db_begin(db, SP_DB_WRITE, NULL);
    g_assert_true(sp_db_run(tx, NULL, NULL, "UPDATE counters SET value = 7", ""));
    g_assert_false(sp_db_run(tx, NULL, NULL, "INSERT INTO counters VALUES ('revision', 1)", ""));
    g_autoptr(GError) error = NULL;
    bool done = sp_db_commit(tx, &error);
    g_assert_true(done == (error == NULL));
    SP_DB_TX_AUTO *look = sp_db_begin(db, SP_DB_READ, NULL);
    SP_DB_ROWS_AUTO *rows = sp_db_query(look, NULL, "SELECT value FROM counters", "");
    g_assert_cmpint(sp_db_next(rows, NULL), ==, 1);
    g_assert_cmpint(sp_db_int(rows, 0), ==, done ? 7 : 0);
    g_clear_pointer(&rows, sp_db_rows_free);
    sp_db_rollback(g_steal_pointer(&look));
    sp_db_close(db);
}

static void test_changed_and_clock(struct fixture *f, gconstpointer data)
{
    struct sp_db *db = sp_db_open(f->where, NULL);
    {
        SP_DB_TX_AUTO *tx = sp_db_begin(db, SP_DB_WRITE, NULL);
        int64_t changed = -1;
        g_assert_true(sp_db_run(tx, &changed, NULL, "UPDATE counters SET value = 5", ""));
        g_assert_cmpint(changed, ==, 1);
        g_assert_true(
            sp_db_run(tx, &changed, NULL, "UPDATE counters SET value = 6 WHERE value = 7", ""));
        g_assert_cmpint(changed, ==, 0);
        g_autofree char *sql = g_strconcat("SELECT ", sp_db_now_ms_sql(db), NULL);
        SP_DB_ROWS_AUTO *rows = sp_db_query(tx, NULL, sql, "");
        g_assert_cmpint(sp_db_next(rows, NULL), ==, 1);
        g_assert_cmpint(ABS(sp_db_int(rows, 0) - sp_time_now_ms()), <, 2000);
    }
    sp_db_close(db);
}

/* Ids and names sort by their bytes: upper case, '_' and lower case are three groups. */
static void test_order_is_bytewise(struct fixture *f, gconstpointer data)
{
    static const char *const names[] = {"b", "_", "A", "a:1", "a", "B", "\303\251", "a1", NULL};
    static const char *const sorted[] = {"A", "B", "_", "a", "a1", "a:1", "b", "\303\251"};
    struct sp_db *db = sp_db_open(f->where, NULL);
    {
        SP_DB_TX_AUTO *tx = sp_db_begin(db, SP_DB_WRITE, NULL);
        g_assert_true(sp_db_run(tx, NULL, NULL, "CREATE TABLE words (word TEXT PRIMARY KEY)", ""));
        for (const char *const *name = names; *name; name++)
            g_assert_true(sp_db_run(tx, NULL, NULL, "INSERT INTO words VALUES ($1)", "t", *name));
        SP_DB_ROWS_AUTO *rows = sp_db_query(tx, NULL, "SELECT word FROM words ORDER BY word", "");
        for (size_t i = 0; i < G_N_ELEMENTS(sorted); i++) {
            g_assert_cmpint(sp_db_next(rows, NULL), ==, 1);
            g_assert_cmpstr(sp_db_text(rows, 0), ==, sorted[i]);
        }
        SP_DB_ROWS_AUTO *page =
            sp_db_query(tx, NULL, "SELECT COUNT(*) FROM words WHERE word > $1", "t", "_");
        g_assert_cmpint(sp_db_next(page, NULL), ==, 1);
        g_assert_cmpint(sp_db_int(page, 0), ==, 5);
    }
    sp_db_close(db);
}

static void test_file_is_private_and_kept(struct fixture *f, gconstpointer data)
{
    struct stat st;
    if (!fixture_is_postgres()) {
        g_assert_cmpint(stat(f->where, &st), ==, 0);
        g_assert_cmpint(st.st_mode & 0777, ==, 0600);
    }
    struct sp_replay made = fixture_create(f, "{}", NULL);
    fixture_reopen(f);
    sp_sandbox_row_free(fixture_sandbox(f, made.resource_id));
}

static void test_newer_schema_is_refused(struct fixture *f, gconstpointer data)
{
    struct sp_db *db = sp_db_open(f->where, NULL);
    struct sp_db_tx *tx = sp_db_begin(db, SP_DB_WRITE, NULL);
    g_assert_true(sp_db_run(
        tx, NULL, NULL, "INSERT INTO schema_migrations (version, applied_at) VALUES (999, 0)", ""));
    g_assert_true(sp_db_commit(tx, NULL));
    sp_db_close(db);
    g_autoptr(GError) error = NULL;
    g_assert_null(sp_store_open(f->where, &error));
    g_assert_nonnull(strstr(error->message, "999"));
}

static gpointer publish_later(gpointer store)
{
    g_usleep(50 * 1000);
    sp_store_publish(store, "topic");
    return NULL;
}

static void test_waiting(struct fixture *f, gconstpointer data)
{
    uint64_t ticket;
    int64_t begun, waited = 0;
    /* it may wake once for nothing: when a shared database has begun to listen */
    for (int i = 0; i < 3 && waited < 29; i++) {
        ticket = sp_store_ticket(f->store, "topic");
        begun = sp_time_monotonic_ms();
        sp_store_wait(f->store, "topic", ticket, begun + 30);
        waited = sp_time_monotonic_ms() - begun;
    }
    g_assert_cmpint(waited, >=, 29);

    GThread *thread = g_thread_new("publisher", publish_later, f->store);
    sp_store_wait(f->store, "topic", ticket, begun + 20000);
    g_assert_cmpint(sp_time_monotonic_ms() - begun, <, 10000);
    g_thread_join(thread);

    /* published between ticket and wait: no wait at all */
    sp_store_wait(f->store, "topic", ticket, begun + 20000);
    ticket = sp_store_ticket(f->store, "topic");
    sp_store_wake_all(f->store);
    sp_store_wait(f->store, "topic", ticket, begun + 20000);
    g_assert_cmpint(sp_time_monotonic_ms() - begun, <, 10000);
}

#define N_WRITERS 8
#define N_EACH 50

static gpointer write_many(gpointer data)
{
    struct fixture *f = data;
    for (int i = 0; i < N_EACH; i++) {
        struct sp_replay made = fixture_create(f, "{}", NULL);
        struct sp_sandbox_row *s = fixture_sandbox(f, made.resource_id);
        sp_sandbox_row_free(s);
    }
    return NULL;
}

static void test_many_writers(struct fixture *f, gconstpointer data)
{
    GThread *threads[N_WRITERS];
    for (int i = 0; i < N_WRITERS; i++)
        threads[i] = g_thread_new("writer", write_many, f);
    for (int i = 0; i < N_WRITERS; i++)
        g_thread_join(threads[i]);
    int64_t counts[SP_N_STATES];
    g_assert_true(sp_store_sandbox_counts(f->store, counts, NULL));
    g_assert_cmpint(counts[SP_STATE_CREATING], ==, N_WRITERS * N_EACH);
    struct sp_desired_set set;
    g_assert_true(sp_store_desired(f->store, "local", 0, &set, NULL));
    g_assert_cmpint(set.revision, ==, N_WRITERS * N_EACH); /* one for each, none lost */
    for (unsigned i = 0; i < set.sandboxes->len; i++)
        g_assert_cmpint(((struct sp_sandbox_row *)set.sandboxes->pdata[i])->revision, ==, i + 1);
    sp_desired_set_clear(&set);
}

#define ADD(path, fn) g_test_add(path, struct fixture, NULL, fixture_set_up, fn, fixture_tear_down)

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    ADD("/db/parameters_go_by_number", test_parameters_go_by_number);
    ADD("/db/rollback_and_nesting", test_rollback_and_nesting);
    ADD("/db/no_half_commit", test_no_half_commit);
    ADD("/db/changed_and_clock", test_changed_and_clock);
    ADD("/db/order_is_bytewise", test_order_is_bytewise);
    ADD("/db/file_is_private_and_kept", test_file_is_private_and_kept);
    ADD("/db/newer_schema_is_refused", test_newer_schema_is_refused);
    ADD("/db/waiting", test_waiting);
    ADD("/db/many_writers", test_many_writers);
    return g_test_run();
}
