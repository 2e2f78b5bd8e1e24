#include "http/internal.h"

#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/time.h"

#define PULL_BLOCK_BYTES (32 * 1024)

static bool header_clean(const char *text)
{
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            return false;
    }
    return true;
}

void sp_http_add_header(struct sp_http_request *request, const char *name, const char *value)
{
    /* A line end in a value (a file name, say) would start a header of the client's choice. */
    if (!header_clean(name) || !header_clean(value))
        return;
    if (!request->headers)
        request->headers = g_ptr_array_new_with_free_func(g_free);
    g_ptr_array_add(request->headers, g_strdup(name));
    g_ptr_array_add(request->headers, g_strdup(value));
}

static bool has_header(const struct sp_http_request *request, const char *name)
{
    for (guint i = 0; request->headers && i < request->headers->len; i += 2) {
        if (g_ascii_strcasecmp(request->headers->pdata[i], name) == 0)
            return true;
    }
    return false;
}

/* Takes over response; NULL stands for lack of memory. */
static void queue(struct sp_http_request *request, int status, const char *content_type,
                  struct MHD_Response *response)
{
    if (!response)
        g_error("out of memory for an HTTP answer");
    if (content_type)
        MHD_add_response_header(response, "Content-Type", content_type);
    MHD_add_response_header(response, "X-Request-Id", request->id);
    if (!has_header(request, "Cache-Control"))
        MHD_add_response_header(response, "Cache-Control", "no-store");
    if (atomic_load(&request->server->stopping))
        MHD_add_response_header(response, "Connection", "close");
    for (guint i = 0; request->headers && i < request->headers->len; i += 2)
        MHD_add_response_header(response, request->headers->pdata[i],
                                request->headers->pdata[i + 1]);
    request->answered = true;
    MHD_queue_response(request->mhd, (unsigned)status, response);
    MHD_destroy_response(response);
}

/* A second answer is a bug of the handler; the first one stands. */
static bool may_answer(struct sp_http_request *request)
{
    if (!request->answered)
        return true;
    sp_log(SP_LOG_ERROR, "http_answered_twice", "request_id", request->id, "path", request->path,
           NULL);
    return false;
}

static void respond_text(struct sp_http_request *request, int status, char *text)
{
    queue(request, status, "application/json",
          MHD_create_response_from_buffer_with_free_callback(strlen(text), text, g_free));
}

void sp_http_respond_json(struct sp_http_request *request, int status, json_t *value)
{
    if (may_answer(request))
        respond_text(request, status, sp_json_dump(value));
    json_decref(value);
}

char *sp_http_error_text(const struct sp_http_request *request, const GError *error,
                         int64_t retry_after_ms)
{
    json_t *inner = json_object();
    json_object_set_new(inner, "code", json_string(sp_error_name(error)));
    json_object_set_new(inner, "message", sp_json_text(error->message));
    if (sp_error_field(error))
        json_object_set_new(inner, "field", sp_json_text(sp_error_field(error)));
    json_object_set_new(inner, "request_id", json_string(request->id));
    if (retry_after_ms >= 0)
        json_object_set_new(inner, "retry_after_ms", json_integer(retry_after_ms));
    g_autoptr(json_t) outer = json_object();
    json_object_set_new(outer, "error", inner);
    return sp_json_dump(outer);
}

static void respond_error(struct sp_http_request *request, const GError *error,
                          int64_t retry_after_ms)
{
    if (!may_answer(request))
        return;
    const int status =
        request->refusal_status ? request->refusal_status : sp_error_http_status(error);
    if (status == 401 && !has_header(request, "WWW-Authenticate"))
        sp_http_add_header(request, "WWW-Authenticate", "Bearer");
    respond_text(request, status, sp_http_error_text(request, error, retry_after_ms));
}

void sp_http_respond_error(struct sp_http_request *request, const GError *error)
{
    respond_error(request, error, -1);
}

void sp_http_respond_error_retry(struct sp_http_request *request, const GError *error,
                                 int64_t retry_after_ms)
{
    char seconds[24];
    g_snprintf(seconds, sizeof(seconds), "%" G_GINT64_FORMAT, (retry_after_ms + 999) / 1000);
    sp_http_add_header(request, "Retry-After", seconds);
    respond_error(request, error, retry_after_ms);
}

void sp_http_respond_bytes(struct sp_http_request *request, int status, const char *content_type,
                           const void *bytes, size_t len)
{
    if (may_answer(request))
        queue(
            request, status, content_type,
            MHD_create_response_from_buffer_with_free_callback(len, g_memdup2(bytes, len), g_free));
}

/* --- streams */
struct stream {
    struct sp_http_request *request; /* a reference */
    sp_http_pull_fn pull;
    void *source;
    GDestroyNotify free_source;
};

static ssize_t stream_pull(void *cls, uint64_t at, char *buffer, size_t max)
{
    struct stream *stream = cls;
    const int64_t begin_ms = sp_time_monotonic_ms();
    const ssize_t n = stream->pull(stream->source, buffer, max);
    if (n < 0 || (size_t)n > max)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (n == 0)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (sp_time_monotonic_ms() - begin_ms > 200)
        sp_http_request_touch(stream->request);
    return n;
}

static void stream_free(void *cls)
{
    struct stream *stream = cls;
    if (stream->free_source)
        stream->free_source(stream->source);
    sp_http_request_unref(stream->request);
    g_free(stream);
}

static void respond_stream(struct sp_http_request *request, int status, const char *content_type,
                           uint64_t len_bytes, const struct stream *what)
{
    if (!may_answer(request)) {
        if (what->free_source)
            what->free_source(what->source);
        return;
    }
    struct stream *stream = g_memdup2(what, sizeof(*what));
    request->refs++;
    queue(request, status, content_type,
          MHD_create_response_from_callback(len_bytes, PULL_BLOCK_BYTES, stream_pull, stream,
                                            stream_free));
}

void sp_http_respond_stream(struct sp_http_request *request, int status, const char *content_type,
                            sp_http_pull_fn pull, void *source, GDestroyNotify free_source)
{
    respond_stream(request, status, content_type, MHD_SIZE_UNKNOWN,
                   &(struct stream){request, pull, source, free_source});
}

void sp_http_respond_stream_sized(struct sp_http_request *request, int status,
                                  const char *content_type, uint64_t len_bytes,
                                  sp_http_pull_fn pull, void *source, GDestroyNotify free_source)
{
    respond_stream(request, status, content_type, len_bytes,
                   &(struct stream){request, pull, source, free_source});
}
