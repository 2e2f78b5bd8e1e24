/* Cursors and limits of lists. A cursor is opaque to clients: base64url of "1:" + the last id
 * given. */
#pragma once

#include <glib.h>
#include <stdbool.h>

#define SP_PAGE_DEFAULT 100
#define SP_PAGE_MAX 1000
#define SP_CURSOR_MAX 160 /* bytes of what a cursor holds, with its NUL */

/* Caller frees. */
char *sp_cursor_encode(const char *last_id);
/* The error names the parameter cursor. prefix is that of the ids in the list ("sbx"); NULL: the
 * last entry is not an id but a short word. */
bool sp_cursor_decode(const char *cursor, const char *prefix, char ret_id[SP_CURSOR_MAX],
                      GError **error);
/* 1…SP_PAGE_MAX from the text of the parameter limit; NULL gives the default. */
bool sp_page_limit_parse(const char *text, unsigned *ret, GError **error);
