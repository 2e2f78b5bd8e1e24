/*
 * The daemons' log: one JSON object a line on stderr, {"time","level","daemon","msg", fields…}.
 *
 * Secrets never go in: callers pass ids, not keys or tokens.
 */
#pragma once

#include <glib.h>

enum sp_log_level { SP_LOG_DEBUG, SP_LOG_INFO, SP_LOG_WARNING, SP_LOG_ERROR };

/* Names the process ("server", "worker", …) and the lowest level that is written. Call once, early.
 */
void sp_log_init(const char *daemon, enum sp_log_level lowest);

/* Writes a line. After msg come pairs of const char * (name, value), ended by NULL; a NULL value
 * leaves its pair out. Thread-safe; a line is one write(2). */
void sp_log(enum sp_log_level level, const char *msg, ...) G_GNUC_NULL_TERMINATED;

/* The same with the error's code and message as fields. */
void sp_log_error(const char *msg, const GError *error, ...) G_GNUC_NULL_TERMINATED;
