/*
 * Runs a helper program to its end: mkfs and the tools of the template builder. Not for hot paths.
 *
 * The program gets its own process group, no stdin, a bounded environment and no descriptor of
 * ours; its stdout and stderr are read as lines. When the call ends, however it ends, no process of
 * that group is left.
 */
#pragma once

#include <gio/gio.h>
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

/* Progress of a long piece of work, one line of text without a newline. */
typedef void (*sp_progress_fn)(void *user, const char *line);

struct sp_program {
    const char *const *argv; /* [0] is looked up in PATH, then in the system's sbin folders */
    const char *const *env;  /* "KEY=value" put over the fixed environment (PATH, HOME,
                              * LC_ALL=C.UTF-8); NULL for none */
    int64_t timeout_ms;
    GCancellable *cancellable; /* NULL: only the time limit ends it early */
    sp_progress_fn progress;   /* each line of output, cut at 1000 bytes; may be NULL */
    void *user;
};

/* Runs it. Failure: SP_ERROR_UNSUPPORTED when the program is not installed, SP_ERROR_UNAVAILABLE
 * when its time is over or the work was cancelled, SP_ERROR_INTERNAL with its last lines of output
 * when it ended badly. Blocks. */
bool sp_program_run(const struct sp_program *program, GError **error);

/* Absolute path of a program as sp_program_run() would find it; NULL when it is not installed. Free
 * with g_free(). */
char *sp_program_find(const char *name);
