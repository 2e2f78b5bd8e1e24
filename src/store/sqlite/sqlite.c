/*
 * The SQLite back end: WAL, synchronous=FULL, foreign keys.
 *
 * One writing connection behind a mutex (a writer never meets SQLITE_BUSY from its own process, so
 * nothing polls), and reading connections in a pool. Statements are prepared once a connection.
 */
#include <errno.h>
#include <sqlite3.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "store/db_backend.h"

#define MAX_READERS 16
#define BUSY_MS 5000 /* another process (a backup, a shell) holds the file */

struct conn {
    sqlite3 *handle;
    GHashTable *statements; /* SQL text → sqlite3_stmt; both owned */
};

struct sqlite_db {
    struct sp_db base;
    char *path;
    struct conn *writer;
    GMutex write_lock; /* held from begin to the end of a writing transaction */
    GMutex lock;       /* readers, n_readers */
    GCond reader_free;
    GPtrArray *readers; /* idle ones */
    unsigned n_readers; /* all */
};

struct sqlite_tx {
    struct sp_db_tx base;
    struct sqlite_db *db;
    struct conn *conn;
    enum sp_db_mode mode;
};

struct sqlite_rows {
    struct sp_db_rows base;
    sqlite3 *handle;
    sqlite3_stmt *stmt;
    bool own; /* not from the cache: finalize it */
};

static void set_error(GError **error, sqlite3 *handle, const char *what)
{
    g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "database: %s: %s", what,
                handle ? sqlite3_errmsg(handle) : "out of memory");
}

static void finalize(gpointer stmt)
{
    sqlite3_finalize(stmt);
}

static void conn_free(struct conn *conn)
{
    if (!conn)
        return;
    g_hash_table_unref(conn->statements);
    sqlite3_close(conn->handle);
    g_free(conn);
}

static struct conn *conn_open(const char *path, GError **error)
{
    struct conn *conn = g_new0(struct conn, 1);
    conn->statements = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, finalize);
    /* NOMUTEX: a connection belongs to one thread at a time by construction. */
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    if (sqlite3_open_v2(path, &conn->handle, flags, NULL) != SQLITE_OK) {
        set_error(error, conn->handle, path);
        conn_free(conn);
        return NULL;
    }
    sqlite3_busy_timeout(conn->handle, BUSY_MS);
    if (sqlite3_exec(conn->handle,
                     "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;"
                     "PRAGMA temp_store=MEMORY;",
                     NULL, NULL, NULL) != SQLITE_OK) {
        set_error(error, conn->handle, path);
        conn_free(conn);
        return NULL;
    }
    return conn;
}

static void db_close(struct sp_db *base)
{
    struct sqlite_db *db = (struct sqlite_db *)base;
    g_assert(db->readers->len == db->n_readers); /* no transaction is open */
    g_ptr_array_unref(db->readers);
    conn_free(db->writer);
    g_mutex_clear(&db->write_lock);
    g_mutex_clear(&db->lock);
    g_cond_clear(&db->reader_free);
    g_free(db->path);
    g_free(db);
}

static struct sp_db *db_open(const char *path, GError **error)
{
    struct conn *writer = conn_open(path, error);
    if (!writer)
        return NULL;
    if (chmod(path, 0600) < 0) { /* it holds the sandboxes' environment variables */
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "chmod %s", path);
        conn_free(writer);
        return NULL;
    }
    struct sqlite_db *db = g_new0(struct sqlite_db, 1);
    db->base.ops = &sp_db_sqlite_ops;
    db->path = g_strdup(path);
    db->writer = writer;
    db->readers = g_ptr_array_new_with_free_func((GDestroyNotify)conn_free);
    g_mutex_init(&db->write_lock);
    g_mutex_init(&db->lock);
    g_cond_init(&db->reader_free);
    return &db->base;
}

static struct conn *take_reader(struct sqlite_db *db, GError **error)
{
    g_mutex_lock(&db->lock);
    while (db->readers->len == 0 && db->n_readers >= MAX_READERS)
        g_cond_wait(&db->reader_free, &db->lock);
    struct conn *conn = NULL;
    if (db->readers->len > 0)
        conn = g_ptr_array_steal_index_fast(db->readers, db->readers->len - 1);
    else
        db->n_readers++;
    g_mutex_unlock(&db->lock);
    if (conn)
        return conn;

    conn = conn_open(db->path, error);
    if (!conn) {
        g_mutex_lock(&db->lock);
        db->n_readers--;
        g_cond_signal(&db->reader_free);
        g_mutex_unlock(&db->lock);
    }
    return conn;
}

/* Gives the connection back and frees the transaction. */
static void tx_end(struct sqlite_tx *tx)
{
    struct sqlite_db *db = tx->db;
    if (tx->mode == SP_DB_WRITE) {
        g_mutex_unlock(&db->write_lock);
    } else {
        g_mutex_lock(&db->lock);
        g_ptr_array_add(db->readers, tx->conn);
        g_cond_signal(&db->reader_free);
        g_mutex_unlock(&db->lock);
    }
    g_free(tx);
}

static struct sp_db_rows *query(struct sp_db_tx *base, const char *sql,
                                const struct sp_db_value *values, unsigned n_values, GError **error)
{
    struct sqlite_tx *tx = (struct sqlite_tx *)base;
    struct conn *conn = tx->conn;
    sqlite3_stmt *stmt = g_hash_table_lookup(conn->statements, sql);
    bool own = false;
    if (!stmt || sqlite3_stmt_busy(stmt)) {
        own = stmt != NULL;
        const char *tail = NULL;
        if (sqlite3_prepare_v3(conn->handle, sql, -1, SQLITE_PREPARE_PERSISTENT, &stmt, &tail) !=
            SQLITE_OK) {
            set_error(error, conn->handle, sql);
            return NULL;
        }
        g_assert(!tail || tail[strspn(tail, " \n;")] == '\0'); /* one statement each */
        if (!own)
            g_hash_table_insert(conn->statements, g_strdup(sql), stmt);
    }
    struct sqlite_rows *rows = g_new0(struct sqlite_rows, 1);
    rows->base.ops = &sp_db_sqlite_ops;
    rows->handle = conn->handle;
    rows->stmt = stmt;
    rows->own = own;
    for (unsigned i = 0; i < n_values; i++) {
        /* SQLite numbers $n parameters in order of first use, so they are found by name. */
        char name[8];
        g_snprintf(name, sizeof name, "$%u", i + 1);
        int at = sqlite3_bind_parameter_index(stmt, name);
        int rc = SQLITE_OK;
        if (at == 0)
            continue; /* a statement may leave a parameter unused */
        if (values[i].kind == SP_DB_INT)
            rc = sqlite3_bind_int64(stmt, at, values[i].integer);
        else if (values[i].kind == SP_DB_TEXT)
            rc = sqlite3_bind_text(stmt, at, values[i].text, -1, SQLITE_TRANSIENT);
        if (rc != SQLITE_OK) {
            set_error(error, conn->handle, "bind");
            sp_db_rows_free(&rows->base);
            return NULL;
        }
    }
    return &rows->base;
}

static bool run_plain(struct conn *conn, const char *sql, GError **error)
{
    if (sqlite3_exec(conn->handle, sql, NULL, NULL, NULL) == SQLITE_OK)
        return true;
    set_error(error, conn->handle, sql);
    return false;
}

static struct sp_db_tx *begin(struct sp_db *base, enum sp_db_mode mode, GError **error)
{
    struct sqlite_db *db = (struct sqlite_db *)base;
    struct sqlite_tx *tx = g_new0(struct sqlite_tx, 1);
    tx->base.ops = &sp_db_sqlite_ops;
    tx->db = db;
    tx->mode = mode;
    if (mode == SP_DB_WRITE) {
        g_mutex_lock(&db->write_lock);
        tx->conn = db->writer;
    } else {
        tx->conn = take_reader(db, error);
        if (!tx->conn) {
            g_free(tx);
            return NULL;
        }
    }
    if (!run_plain(tx->conn, mode == SP_DB_WRITE ? "BEGIN IMMEDIATE" : "BEGIN", error)) {
        tx_end(tx);
        return NULL;
    }
    return &tx->base;
}

static void rollback(struct sp_db_tx *base)
{
    struct sqlite_tx *tx = (struct sqlite_tx *)base;
    if (!sqlite3_get_autocommit(tx->conn->handle)) /* an error may have rolled back already */
        sqlite3_exec(tx->conn->handle, "ROLLBACK", NULL, NULL, NULL);
    tx_end(tx);
}

static bool commit(struct sp_db_tx *base, GError **error)
{
    struct sqlite_tx *tx = (struct sqlite_tx *)base;
    if (!run_plain(tx->conn, "COMMIT", error)) {
        rollback(base);
        return false;
    }
    tx_end(tx);
    return true;
}

static int next(struct sp_db_rows *base, GError **error)
{
    struct sqlite_rows *rows = (struct sqlite_rows *)base;
    switch (sqlite3_step(rows->stmt)) {
    case SQLITE_ROW:
        return 1;
    case SQLITE_DONE:
        return 0;
    default:
        set_error(error, rows->handle, sqlite3_sql(rows->stmt));
        return -1;
    }
}

static const char *text(struct sp_db_rows *base, unsigned column)
{
    return (const char *)sqlite3_column_text(((struct sqlite_rows *)base)->stmt, (int)column);
}

static int64_t integer(struct sp_db_rows *base, unsigned column)
{
    return sqlite3_column_int64(((struct sqlite_rows *)base)->stmt, (int)column);
}

static int64_t changed(struct sp_db_rows *base)
{
    return sqlite3_changes64(((struct sqlite_rows *)base)->handle);
}

static void rows_free(struct sp_db_rows *base)
{
    struct sqlite_rows *rows = (struct sqlite_rows *)base;
    if (rows->own) {
        sqlite3_finalize(rows->stmt);
    } else {
        sqlite3_reset(rows->stmt);
        sqlite3_clear_bindings(rows->stmt);
    }
    g_free(rows);
}

const struct sp_db_ops sp_db_sqlite_ops = {
    .now_ms_sql = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
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
};
