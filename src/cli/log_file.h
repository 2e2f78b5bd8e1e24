/* Log files of the daemons, DIR/log/<daemon>.log: appended to, moved to .log.1 once they are full.
 */
#pragma once

#include <glib.h>

#include "cli/state_dir.h"

#define SP_LOG_FILE_MAX_BYTES (16 * 1024 * 1024)

/* Open for appending, close-on-exec; -1 on failure. */
int sp_log_file_open(const struct sp_state_dir *state, const char *daemon, GError **error);
/* When the file is longer than the maximum: copies it to .1 and empties it. The daemon goes on
 * appending to the same file; a line written between copy and emptying is lost. */
void sp_log_file_rotate(const struct sp_state_dir *state, const char *daemon);
/* The last lines, at most 2000 bytes; NULL when there are none. Free with g_free(). */
char *sp_log_file_tail(const struct sp_state_dir *state, const char *daemon);
