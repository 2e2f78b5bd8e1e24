/* What the verbs print: errors, JSON and tables. */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>

/* Prints "space: <message> (<code>[, field <pointer>])" on stderr; returns SP_EXIT_PLATFORM. */
int sp_output_error(const GError *error);
/* Flushes stdout; code, or SP_EXIT_PLATFORM with a message when it could not be written. */
int sp_output_finish(int code);

/* Prints a value as indented JSON, keys in their own order. */
void sp_output_json(const json_t *value);

/* The text of object[a] or object[a][b]: strings as they are, lists of strings with commas, all
 * else as JSON, null and absent as "-". Control characters are replaced, so that a terminal shows
 * what is there. Free with g_free(). */
char *sp_output_text(const json_t *object, const char *a, const char *b);
/* An object as one line a member ("name value"), without what is null or empty. */
void sp_output_members(const json_t *object);
/* How long ago an RFC 3339 time was: "12s", "5m", "3h", "2d"; "-" when it is none. Free with
 * g_free(). */
char *sp_output_age(const json_t *time);

/* A table whose columns are as wide as their content. */
struct sp_text_table;
struct sp_text_table *sp_text_table_new(const char *const *titles); /* NULL-terminated */
/* Adds a row of as many cells as there are titles; takes over the strings. */
void sp_text_table_add(struct sp_text_table *table, char **cells);
/* Prints and frees it. */
void sp_text_table_print(struct sp_text_table *table);
