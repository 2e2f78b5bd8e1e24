/*
 * The PostgreSQL back end: several servers may work on one database.
 *
 * A writing transaction begins by taking one advisory lock, so that writers of all servers come one
 * after the other, as with SQLite: what a transaction has read is still so when it writes,
 * revisions are committed in their order, and no code above has to repeat anything. Within this
 * process they queue for one connection, so that no crowd of writers uses up the pool. A reading
 * transaction sees one snapshot.
 *
 * Rows are read whole when the statement runs. A connection that was lost is replaced when the next
 * transaction begins; one that is lost under a transaction fails it. Of a commit whose answer did
 * not come nobody knows whether it took effect: it is an error, and says so.
 */
#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "store/db_backend.h"
#include "store/postgres/conn.h"
#include "store/postgres/ddl.h"
#include "store/postgres/notify.h"

#define MAX_READERS 12
#define TAKE_MS 10000             /* how long a transaction waits for a connection */
#define WRITE_LOCK "357828739909" /* "SPACE" in ASCII */

#define OID_BOOL 16

struct postgres_db {
    struct sp_db base;
    char *url;
    GMutex lock; /* a leaf: what follows */
    GCond freed;
    struct sp_pg_conn *writer; /* when it is not in use; NULL: to be opened */
    bool writing;
    GPtrArray *readers; /* idle ones */
    unsigned n_reading;
    struct sp_pg_notifier *notifier; /* NULL: nobody listens */
};

struct postgres_tx {
    struct sp_db_tx base;
    struct postgres_db *db;
    struct sp_pg_conn *conn;
    enum sp_db_mode mode;
};

struct postgres_rows {
    struct sp_db_rows base;
    PGresult *result;
    int next;
};

static void db_close(struct sp_db *base)
{
    struct postgres_db *db = (struct postgres_db *)base;
    g_assert(!db->writing && db->n_reading == 0); /* no transaction is open */
    sp_pg_notifier_free(db->notifier);
    sp_pg_conn_free(db->writer);
    g_ptr_array_unref(db->readers);
    g_mutex_clear(&db->lock);
    g_cond_clear(&db->freed);
    g_free(db->url);
    g_free(db);
}

static struct sp_db *db_open(const char *url, GError **error)
{
    struct sp_pg_conn *writer = sp_pg_conn_open(url, error);
    if (!writer)
        return NULL;
    struct postgres_db *db = g_new0(struct postgres_db, 1);
    db->base.ops = &sp_db_postgres_ops;
    db->url = g_strdup(url);
    db->writer = writer;
    db->readers = g_ptr_array_new_with_free_func((GDestroyNotify)sp_pg_conn_free);
    g_mutex_init(&db->lock);
    g_cond_init(&db->freed);
    return &db->base;
}

static bool is_free(const struct postgres_db *db, enum sp_db_mode mode)
{
    return mode == SP_DB_WRITE ? !db->writing : db->n_reading < MAX_READERS;
}

/* Takes a place, and an idle connection when there is one (else *ret is NULL). */
static bool take_place(struct postgres_db *db, enum sp_db_mode mode, struct sp_pg_conn **ret,
                       GError **error)
{
    gint64 until_us = g_get_monotonic_time() + TAKE_MS * G_TIME_SPAN_MILLISECOND;
    g_mutex_lock(&db->lock);
    while (!is_free(db, mode) && g_cond_wait_until(&db->freed, &db->lock, until_us))
        ;
    bool taken = is_free(db, mode);
    *ret = NULL;
    if (taken && mode == SP_DB_WRITE) {
        db->writing = true;
        *ret = g_steal_pointer(&db->writer);
    } else if (taken) {
        db->n_reading++;
        if (db->readers->len > 0)
            *ret = g_ptr_array_steal_index_fast(db->readers, db->readers->len - 1);
    }
    g_mutex_unlock(&db->lock);
    if (!taken)
        g_set_error_literal(
            error, SP_ERROR, SP_ERROR_UNAVAILABLE,
            "database: no connection became free within " G_STRINGIFY(TAKE_MS) " ms");
    return taken;
}

/* Gives the place back, with the connection if it is still of use (it may be NULL). */
static void give_place(struct postgres_db *db, enum sp_db_mode mode, struct sp_pg_conn *conn)
{
    if (conn && sp_pg_conn_broken(conn)) {
        sp_pg_conn_free(conn);
        conn = NULL;
    }
    g_mutex_lock(&db->lock);
    if (mode == SP_DB_WRITE) {
        db->writing = false;
        db->writer = conn;
    } else {
        db->n_reading--;
        if (conn)
            g_ptr_array_add(db->readers, conn);
    }
    g_cond_broadcast(&db->freed); /* readers and writers wait on the same condition */
    g_mutex_unlock(&db->lock);
}

/* READ COMMITTED: each statement sees what was committed before the lock was got. */
static bool begin_on(struct sp_pg_conn *conn, enum sp_db_mode mode, GError **error)
{
    PGresult *result =
        sp_pg_conn_simple(conn,
                          mode == SP_DB_WRITE ? "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;"
                                                "SELECT pg_advisory_xact_lock(" WRITE_LOCK ")"
                                              : "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
                          error);
    PQclear(result);
    return result != NULL;
}

/* The next idle reading connection, or NULL. */
static struct sp_pg_conn *other_idle(struct postgres_db *db, enum sp_db_mode mode)
{
    g_mutex_lock(&db->lock);
    struct sp_pg_conn *conn = NULL;
    if (mode == SP_DB_READ && db->readers->len > 0)
        conn = g_ptr_array_steal_index_fast(db->readers, db->readers->len - 1);
    g_mutex_unlock(&db->lock);
    return conn;
}

/* An idle connection may have been lost since its last use: then another one, at last a fresh one.
 * Nothing was done yet, so that beginning again is safe. *conn is to be given back in any case. */
static bool begin_some(struct postgres_db *db, enum sp_db_mode mode, struct sp_pg_conn **conn,
                       GError **error)
{
    for (;;) {
        bool fresh = !*conn;
        if (fresh)
            *conn = sp_pg_conn_open(db->url, error);
        if (!*conn)
            return false;
        GError *cause = NULL;
        if (begin_on(*conn, mode, &cause))
            return true;
        if (fresh || !sp_pg_conn_broken(*conn)) {
            g_propagate_error(error, cause);
            PQclear(sp_pg_conn_simple(*conn, "ROLLBACK", NULL));
            return false;
        }
        g_error_free(cause);
        sp_pg_conn_free(*conn);
        *conn = other_idle(db, mode);
    }
}

static struct sp_db_tx *begin(struct sp_db *base, enum sp_db_mode mode, GError **error)
{
    struct postgres_db *db = (struct postgres_db *)base;
    struct sp_pg_conn *conn;
    if (!take_place(db, mode, &conn, error))
        return NULL;
    if (!begin_some(db, mode, &conn, error)) {
        give_place(db, mode, conn);
        return NULL;
    }
    struct postgres_tx *tx = g_new0(struct postgres_tx, 1);
    tx->base.ops = &sp_db_postgres_ops;
    tx->db = db;
    tx->conn = conn;
    tx->mode = mode;
    return &tx->base;
}

static void tx_end(struct postgres_tx *tx)
{
    give_place(tx->db, tx->mode, tx->conn);
    g_free(tx);
}

static void rollback(struct sp_db_tx *base)
{
    struct postgres_tx *tx = (struct postgres_tx *)base;
    if (!sp_pg_conn_broken(tx->conn))
        PQclear(sp_pg_conn_simple(tx->conn, "ROLLBACK", NULL));
    /* whatever went wrong: a connection that is still in a transaction is not used again */
    if (PQtransactionStatus(sp_pg_conn_handle(tx->conn)) != PQTRANS_IDLE)
        g_clear_pointer(&tx->conn, sp_pg_conn_free);
    tx_end(tx);
}

static bool commit(struct sp_db_tx *base, GError **error)
{
    struct postgres_tx *tx = (struct postgres_tx *)base;
    PGresult *result = sp_pg_conn_simple(tx->conn, "COMMIT", error);
    /* After a statement has failed, COMMIT rolls back and says so by its tag only. */
    bool done = result && strcmp(PQcmdStatus(result), "COMMIT") == 0;
    if (!result && sp_pg_conn_broken(tx->conn))
        g_prefix_error(error, "whether the change took effect is not known: ");
    else if (result && !done)
        g_set_error_literal(error, SP_ERROR, SP_ERROR_INTERNAL,
                            "database: the transaction was rolled back");
    PQclear(result);
    if (done)
        tx_end(tx);
    else
        rollback(base);
    return done;
}

static struct sp_db_rows *query(struct sp_db_tx *base, const char *sql,
                                const struct sp_db_value *values, unsigned n_values, GError **error)
{
    struct postgres_tx *tx = (struct postgres_tx *)base;
    g_autofree char *ddl = sp_pg_ddl_translate(sql);
    PGresult *result = sp_pg_conn_run(tx->conn, ddl ? ddl : sql, values, n_values, error);
    if (!result)
        return NULL;
    struct postgres_rows *rows = g_new0(struct postgres_rows, 1);
    rows->base.ops = &sp_db_postgres_ops;
    rows->result = result;
    return &rows->base;
}

static int next(struct sp_db_rows *base, GError **error)
{
    struct postgres_rows *rows = (struct postgres_rows *)base;
    return rows->next < PQntuples(rows->result) ? (rows->next++, 1) : 0;
}

static const char *text(struct sp_db_rows *base, unsigned column)
{
    struct postgres_rows *rows = (struct postgres_rows *)base;
    if (PQgetisnull(rows->result, rows->next - 1, (int)column))
        return NULL;
    return PQgetvalue(rows->result, rows->next - 1, (int)column);
}

static int64_t integer(struct sp_db_rows *base, unsigned column)
{
    const char *value = text(base, column);
    if (!value)
        return 0;
    if (PQftype(((struct postgres_rows *)base)->result, (int)column) == OID_BOOL)
        return value[0] == 't';
    return g_ascii_strtoll(value, NULL, 10);
}

static int64_t changed(struct sp_db_rows *base)
{
    return g_ascii_strtoll(PQcmdTuples(((struct postgres_rows *)base)->result), NULL, 10);
}

static void rows_free(struct sp_db_rows *base)
{
    struct postgres_rows *rows = (struct postgres_rows *)base;
    PQclear(rows->result);
    g_free(rows);
}

/* A table that was not made by our own statements (restored into another form, say) could compare
 * otherwise: then pages of lists would not fit together. */
static bool check_table(struct sp_db_tx *base, const char *table, GError **error)
{
    SP_DB_ROWS_AUTO *rows = sp_db_query(base, error,
                                        "SELECT a.attname FROM pg_catalog.pg_attribute a"
                                        " JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation"
                                        " WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND"
                                        " NOT (c.collname = 'C' AND"
                                        " c.collnamespace = 'pg_catalog'::regnamespace) LIMIT 1",
                                        "t", table);
    int got = rows ? sp_db_next(rows, error) : -1;
    if (got > 0)
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                    "column %s of the database's table %s does not have the collation \"C\"",
                    sp_db_text(rows, 0), table);
    return got == 0;
}

static void listen(struct sp_db *base, sp_db_heard heard, void *user)
{
    struct postgres_db *db = (struct postgres_db *)base;
    g_assert(!db->notifier);
    db->notifier = sp_pg_notifier_new(db->url, heard, user);
}

static void notify(struct sp_db *base, const char *topic)
{
    struct postgres_db *db = (struct postgres_db *)base;
    if (db->notifier)
        sp_pg_notifier_send(db->notifier, topic);
}

const struct sp_db_ops sp_db_postgres_ops = {
    /* not now(), which is when the transaction began: before it waited for the lock */
    .now_ms_sql = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    .open = db_open,
    .close = db_close,
    .begin = begin,
    .commit = commit,
    .rollback = rollback,
    .query = query,
    .next = next,
    .text = text,
    .integer = integer,
    .changed = changed,
    .rows_free = rows_free,
    .check_table = check_table,
    .listen = listen,
    .notify = notify,
};
