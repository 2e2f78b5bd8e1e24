#include "base/log.h"

#include <jansson.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"

static const char *const level_names[] = {"debug", "info", "warning", "error"};

/* Set once by sp_log_init() before other threads exist, read-only afterwards. */
static const char *daemon_name = "space";
static enum sp_log_level lowest_level = SP_LOG_INFO;

void sp_log_init(const char *daemon, enum sp_log_level lowest)
{
    daemon_name = daemon;
    lowest_level = lowest;
}

static void write_line(enum sp_log_level level, const char *msg, const GError *error,
                       va_list fields)
{
    char now[SP_TIME_TEXT];
    sp_time_format(sp_time_now_ms(), now);
    json_t *line = json_object();
    json_object_set_new(line, "time", json_string(now));
    json_object_set_new(line, "level", json_string(level_names[level]));
    json_object_set_new(line, "daemon", json_string(daemon_name));
    json_object_set_new(line, "msg", json_string(msg));
    if (error) {
        json_object_set_new(line, "code", json_string(sp_error_name(error)));
        g_autofree char *text = g_utf8_make_valid(error->message, -1);
        json_object_set_new(line, "error", json_string(text));
    }
    const char *name;
    while ((name = va_arg(fields, const char *))) {
        const char *value = va_arg(fields, const char *);
        if (value) {
            g_autofree char *text = g_utf8_make_valid(value, -1);
            json_object_set_new(line, name, json_string(text));
        }
    }
    char *text = json_dumps(line, JSON_COMPACT);
    json_decref(line);
    g_autofree char *with_newline = g_strconcat(text, "\n", NULL);
    free(text);
    ssize_t n = write(STDERR_FILENO, with_newline, strlen(with_newline));
    (void)n; /* a log that cannot be written has nowhere to complain */
}

void sp_log(enum sp_log_level level, const char *msg, ...)
{
    if (level < lowest_level)
        return;
    va_list fields;
    va_start(fields, msg);
    write_line(level, msg, NULL, fields);
    va_end(fields);
}

void sp_log_error(const char *msg, const GError *error, ...)
{
    va_list fields;
    va_start(fields, error);
    write_line(SP_LOG_ERROR, msg, error, fields);
    va_end(fields);
}
