/*
 * What PostgreSQL wants said differently in the schema.
 *
 * Every text column is compared byte by byte (COLLATE "C"), as SQLite does: ids sort by time, pages
 * of a list fit together, and no index depends on the C library's version, whatever the collation
 * of the database.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>

/* The statement with COLLATE "C" behind each type TEXT of a CREATE TABLE or ALTER TABLE; NULL when
 * it is another statement. Free with g_free(). */
char *sp_pg_ddl_translate(const char *sql);
