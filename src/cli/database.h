/*
 * Which database the server keeps its state in: SQLite in the state directory, or PostgreSQL.
 *
 * A URL with a password comes from a file or the environment, never by argv, which every user of
 * the machine can read. `space up` keeps it in DIR/database (0600), so that `up` and `down` find it
 * the next time.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>

#define SP_DATABASE_VARIABLE "SPACE_DATABASE"
#define SP_DATABASE_SQLITE "sqlite" /* in place of a URL */

/* What was asked for: --database, --database-file (NULL: not given), else the environment. *ret
 * (owned): a URL or SP_DATABASE_SQLITE; NULL: nothing was said. Takes the variable out of the
 * environment. */
bool sp_database_asked(const char *url, const char *file, char **ret, GError **error);

/* The URL that `up` has kept; *ret NULL: none, it is SQLite. */
bool sp_database_kept(const char *state_dir, char **ret, GError **error);
/* Keeps it; url NULL: SQLite. */
bool sp_database_keep(const char *state_dir, const char *url, GError **error);

/* Which one an `up` is to use. asked: as sp_database_asked() gave it. *ret (owned) is a URL that
 * answers, or NULL: SQLite. Refuses to leave the database that knows the sandboxes of this
 * directory. May block for some seconds. */
bool sp_database_choose(const char *state_dir, const char *asked, char **ret, GError **error);
