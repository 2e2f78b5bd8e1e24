#include "node/build_log.h"

#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/time.h"
#include "node/upstream.h"

#define MAX_BYTES (256u << 10) /* that wait; beyond, the oldest go */
#define PAUSE_MS 500

struct sp_build_log {
    struct sp_node *node;
    char *build_id;
    GCancellable *cancellable;
    GThread *thread;
    GMutex lock;
    GCond changed;
    GString *text;
    bool ended;
};

void sp_build_log_line(void *data, const char *line)
{
    struct sp_build_log *log = data;
    g_autofree char *valid = g_utf8_make_valid(line, -1);
    g_mutex_lock(&log->lock);
    g_string_append(log->text, valid);
    g_string_append_c(log->text, '\n');
    if (log->text->len > MAX_BYTES) {
        const char *cut = strchr(log->text->str + log->text->len - MAX_BYTES / 2, '\n');
        g_string_erase(log->text, 0, cut ? cut + 1 - log->text->str : -1);
        g_string_prepend(log->text, "[… lines were dropped here …]\n");
    }
    g_mutex_unlock(&log->lock);
}

/* One report with what is new; the answer may cancel the build. */
static void post(struct sp_build_log *log)
{
    g_mutex_lock(&log->lock);
    g_autofree char *text = g_strdup(log->text->str);
    gsize len = log->text->len;
    g_mutex_unlock(&log->lock);
    g_autoptr(json_t) body = json_object();
    json_object_set_new(body, "state", json_string("running"));
    if (len > 0)
        json_object_set_new(body, "log", sp_json_text(text));
    bool cancel = false;
    g_autoptr(GError) error = NULL;
    if (!sp_upstream_build(log->node, log->build_id, body, &cancel, &error)) {
        cancel = sp_error_http_status(error) == 404;
        len = 0; /* it is sent again */
    }
    if (cancel)
        g_cancellable_cancel(log->cancellable);
    g_mutex_lock(&log->lock);
    g_string_erase(log->text, 0, (gssize)MIN(len, log->text->len));
    g_mutex_unlock(&log->lock);
}

static void *log_thread(void *data)
{
    struct sp_build_log *log = data;
    g_mutex_lock(&log->lock);
    while (!log->ended) {
        g_mutex_unlock(&log->lock);
        post(log);
        g_mutex_lock(&log->lock);
        int64_t until = sp_time_monotonic_us() + PAUSE_MS * 1000;
        while (!log->ended && g_cond_wait_until(&log->changed, &log->lock, until)) {
        }
    }
    g_mutex_unlock(&log->lock);
    return NULL;
}

struct sp_build_log *sp_build_log_new(struct sp_node *node, const char *build_id,
                                      GCancellable *cancellable)
{
    struct sp_build_log *log = g_new0(struct sp_build_log, 1);
    log->node = node;
    log->build_id = g_strdup(build_id);
    log->cancellable = cancellable;
    log->text = g_string_new(NULL);
    g_mutex_init(&log->lock);
    g_cond_init(&log->changed);
    log->thread = g_thread_new("build-log", log_thread, log);
    return log;
}

char *sp_build_log_free(struct sp_build_log *log)
{
    g_mutex_lock(&log->lock);
    log->ended = true;
    g_cond_signal(&log->changed);
    g_mutex_unlock(&log->lock);
    g_thread_join(log->thread);
    char *rest = g_string_free(log->text, FALSE);
    g_mutex_clear(&log->lock);
    g_cond_clear(&log->changed);
    g_free(log->build_id);
    g_free(log);
    return rest;
}
