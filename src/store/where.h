/*
 * Where a database is: the path of a SQLite file, or a URL of PostgreSQL (libpq, "Connection
 * URIs").
 *
 * A password may stand in it: it is never logged, nor shown in an error.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>

/* postgresql:// or postgres:// */
bool sp_where_is_url(const char *where);
/* Checks the form. The error does not show it. */
bool sp_where_check(const char *where, GError **error);
bool sp_where_has_password(const char *where);
/* Whether both name the same tables, perhaps by another user. */
bool sp_where_same(const char *a, const char *b);
/* In a form that may be shown and logged: a path, or a URL without user, password and options. Free
 * with g_free(). */
char *sp_where_describe(const char *where);
/* Connects and lets go again. Blocks for seconds if nobody answers. */
bool sp_where_probe(const char *where, GError **error);
