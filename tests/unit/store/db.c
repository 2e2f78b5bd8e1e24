/* The database interface, migrations and the change notification. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "fixture.h"
#include "store/db.h"

static void test_parameters_go_by_number(struct fixture *f, gconstpointer data)
{
    g_autofree char *path = g_build_filename(f->dir, "plain.db", NULL);
    struct sp_db *db = sp_db_open(path, NULL);
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
    g_autofree char *wal = g_strconcat(path, "-wal", NULL), *shm = g_strconcat(path, "-shm", NULL);
    unlink(path);
    unlink(wal);
    unlink(shm);
}

static void test_rollback_and_nesting(struct fixture *f, gconstpointer data)
{
    g_autofree char *path = g_build_filename(f->dir, "server.db", NULL);
    struct sp_db *db = sp_db_open(path, NULL);
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

static void test_file_is_private_and_kept(struct fixture *f, gconstpointer data)
{
    struct stat st;
    g_assert_cmpint(stat(f->path, &st), ==, 0);
    g_assert_cmpint(st.st_mode & 0777, ==, 0600);
    struct sp_replay made = fixture_create(f, "{}", NULL);
    fixture_reopen(f);
    sp_sandbox_row_free(fixture_sandbox(f, made.resource_id));
}

static void test_newer_schema_is_refused(struct fixture *f, gconstpointer data)
{
    struct sp_db *db = sp_db_open(f->path, NULL);
    struct sp_db_tx *tx = sp_db_begin(db, SP_DB_WRITE, NULL);
    g_assert_true(sp_db_run(
        tx, NULL, NULL, "INSERT INTO schema_migrations (version, applied_at) VALUES (999, 0)", ""));
    g_assert_true(sp_db_commit(tx, NULL));
    sp_db_close(db);
    g_autoptr(GError) error = NULL;
    g_assert_null(sp_store_open(f->path, &error));
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
    uint64_t ticket = sp_store_ticket(f->store, "topic");
    int64_t begun = sp_time_monotonic_ms();
    sp_store_wait(f->store, "topic", ticket, begun + 30);
    g_assert_cmpint(sp_time_monotonic_ms() - begun, >=, 29);

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
    ADD("/db/file_is_private_and_kept", test_file_is_private_and_kept);
    ADD("/db/newer_schema_is_refused", test_newer_schema_is_refused);
    ADD("/db/waiting", test_waiting);
    ADD("/db/many_writers", test_many_writers);
    return g_test_run();
}
