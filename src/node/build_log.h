/* The log of a build on its way to the server: bounded, sent by a thread of its own. */
#pragma once

#include <gio/gio.h>

#include "node/node.h"

struct sp_build_log;

/* cancellable is cancelled when the server does not want the build any more. Both are borrowed. */
struct sp_build_log *sp_build_log_new(struct sp_node *node, const char *build_id,
                                      GCancellable *cancellable);
/* Adds a line (fits sp_progress_fn). */
void sp_build_log_line(void *log, const char *line);
/* Ends the thread; the text that was not sent yet, for the last report. Free with g_free(). */
char *sp_build_log_free(struct sp_build_log *log);
