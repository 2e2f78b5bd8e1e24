/*
 * One connection to PostgreSQL (libpq): statements with a deadline, prepared once each, errors as
 * GError. A connection belongs to one thread at a time.
 *
 * Nothing here puts a password, or a part of the URL that could hold one, into an error text.
 */
#pragma once

#include <glib.h>
#include <libpq-fe.h>
#include <stdbool.h>

#include "store/db.h"

struct sp_pg_conn;

/* Blocks while it connects: at most 5 s for each address of the URL's hosts. Refuses a server that
 * is too old, a database whose encoding is not UTF-8, and (unless the URL says otherwise) a
 * standby. SP_ERROR_UNAVAILABLE when it cannot be reached. */
struct sp_pg_conn *sp_pg_conn_open(const char *url, GError **error);
void sp_pg_conn_free(struct sp_pg_conn *conn);
/* It is of no use any more: lost, or in a state that we do not know. Free it. */
bool sp_pg_conn_broken(const struct sp_pg_conn *conn);
PGconn *sp_pg_conn_handle(struct sp_pg_conn *conn);

/* Runs SQL without parameters, also several statements (then the last one's result is given).
 * NULL with *error. The caller clears the result. */
PGresult *sp_pg_conn_simple(struct sp_pg_conn *conn, const char *sql, GError **error);
/* Runs one statement, prepared at its first use. */
PGresult *sp_pg_conn_run(struct sp_pg_conn *conn, const char *sql, const struct sp_db_value *values,
                         unsigned n_values, GError **error);

/* Checks the form of a URL. The error says nothing of its text, which may hold a password. */
bool sp_pg_url_check(const char *url, GError **error);
/* "postgresql://host:port/name": without user, password and options. Free with g_free(). */
char *sp_pg_url_describe(const char *url);
/* Whether a password stands in it. */
bool sp_pg_url_has_password(const char *url);
/* They name the same tables, perhaps by another user: server, database and options (in which a
 * schema may be named) agree. */
bool sp_pg_url_same(const char *a, const char *b);
