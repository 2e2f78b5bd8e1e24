/*
 * A small database interface: a pool of connections, transactions, statements with numbered
 * parameters.
 *
 * All SQL is in the dialect that SQLite and PostgreSQL share; parameters are $1, $2, …; integers
 * are BIGINT, and so is an integer parameter: where PostgreSQL wants another type (SUBSTR), cast
 * it. Only the files of this folder use it; callers outside use store.h.
 *
 * Two back ends: sqlite/ (the file of one server) and postgres/ (several servers may share it).
 * Every statement runs in a transaction. Writing ones come one after the other, also those of other
 * servers; a reading one sees one snapshot. Nothing here may be called while a lock of a caller is
 * held that a writer could want.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

struct sp_db;
struct sp_db_tx;
struct sp_db_rows;

enum sp_db_mode { SP_DB_READ, SP_DB_WRITE };

struct sp_db_value {
    enum { SP_DB_NULL, SP_DB_INT, SP_DB_TEXT } kind;
    int64_t integer;
    const char *text; /* borrowed until the query is freed */
};

/* where: path of the SQLite file, made with mode 0600 when absent, or a URL (where.h). Blocks
 * while it connects (seconds, if nobody answers: SP_ERROR_UNAVAILABLE). */
struct sp_db *sp_db_open(const char *where, GError **error);
void sp_db_close(struct sp_db *db);

/* Takes a connection and begins. May block until one is free (the longest transaction is
 * milliseconds). NULL with *error on failure. End it by commit or rollback, which free tx in any
 * case. A commit that fails has not taken effect, except that with a connection that was lost under
 * it (SP_ERROR_UNAVAILABLE) nobody knows. */
struct sp_db_tx *sp_db_begin(struct sp_db *db, enum sp_db_mode mode, GError **error);
bool sp_db_commit(struct sp_db_tx *tx, GError **error);
void sp_db_rollback(struct sp_db_tx *tx);

/* Runs a statement. format has a letter for each parameter: 't' const char * (NULL is SQL NULL),
 * 'i' int64_t. sp_db_run is for statements without rows; ret_changed (may be NULL) gets the number
 * of rows it changed. */
bool sp_db_run(struct sp_db_tx *tx, int64_t *ret_changed, GError **error, const char *sql,
               const char *format, ...);
struct sp_db_rows *sp_db_query(struct sp_db_tx *tx, GError **error, const char *sql,
                               const char *format, ...);
struct sp_db_rows *sp_db_query_values(struct sp_db_tx *tx, GError **error, const char *sql,
                                      const struct sp_db_value *values, unsigned n_values);

/* An SQL expression for the database's own clock: BIGINT milliseconds since the epoch. */
const char *sp_db_now_ms_sql(const struct sp_db *db);

/* --- a database that other servers may use at the same time */
bool sp_db_shared(const struct sp_db *db);
/* A topic that another server has named with sp_db_notify(); NULL: some were perhaps missed. */
typedef void (*sp_db_heard)(const char *topic, void *user);
/* Calls heard, from a thread of its own, until the database is closed. Once at most. */
void sp_db_listen(struct sp_db *db, sp_db_heard heard, void *user);
/* Tells the other servers, if all goes well: a hint, that can be lost. Does not block. */
void sp_db_notify(struct sp_db *db, const char *topic);
/* That a table (which need not exist) compares text byte by byte. */
bool sp_db_check_table(struct sp_db *db, struct sp_db_tx *tx, const char *table, GError **error);

/* 1: there is a row; 0: no more; -1: *error. */
int sp_db_next(struct sp_db_rows *rows, GError **error);
/* Of the current row; text is borrowed until the next row, NULL for SQL NULL. */
const char *sp_db_text(struct sp_db_rows *rows, unsigned column);
int64_t sp_db_int(struct sp_db_rows *rows, unsigned column);
void sp_db_rows_free(struct sp_db_rows *rows);

/* Cleanup of local variables: a transaction that was not committed is rolled back. */
#define SP_DB_TX_AUTO __attribute__((cleanup(sp_db_tx_cleanup))) struct sp_db_tx
#define SP_DB_ROWS_AUTO __attribute__((cleanup(sp_db_rows_cleanup))) struct sp_db_rows
void sp_db_tx_cleanup(struct sp_db_tx **tx);
void sp_db_rows_cleanup(struct sp_db_rows **rows);
/* Commits *tx and forgets it. */
bool sp_db_commit_auto(struct sp_db_tx **tx, GError **error);
