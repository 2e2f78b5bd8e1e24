/*
 * The way of a request through the callbacks of libmicrohttpd:
 *
 *   on_connection  a socket came: it gets its record and the deadline for the first head
 *   on_target      the request line is read: the request is made
 *   on_access      first call: strict look, route, authorization; then pieces of the body; then the
 *                  last call, which runs the handler
 *   on_completed   the answer is sent or the connection broke
 *
 * An answer given in the first call makes libmicrohttpd close the connection, so that is done only
 * for broken framing and for large bodies. Otherwise a refusal waits in the request until the body
 * has been read and dropped. In the middle of a body libmicrohttpd takes no answer at all
 * (refuse.c).
 */
#include "http/internal.h"

#include <string.h>

#include "base/time.h"

/* What is read and dropped to keep a connection alive. */
#define DRAIN_MAX_BYTES (64 * 1024)

/* A server that stops has no patience with a connection that has no request. */
static int64_t from_now(const struct sp_http_server *server, int64_t ms)
{
    return sp_time_monotonic_ms() + (atomic_load(&server->stopping) ? 0 : ms);
}

void sp_http_on_connection(void *cls, struct MHD_Connection *connection, void **socket_context,
                           enum MHD_ConnectionNotificationCode code)
{
    struct sp_http_server *server = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        *socket_context = sp_http_deadlines_add(&server->deadlines, info->connect_fd,
                                                from_now(server, server->head_timeout_ms));
    } else {
        sp_http_deadlines_remove(&server->deadlines, *socket_context);
        *socket_context = NULL;
    }
}

void *sp_http_on_target(void *cls, const char *uri, struct MHD_Connection *connection)
{
    struct sp_http_server *server = cls;
    struct sp_http_request *request = sp_http_request_new(server, connection, uri);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    request->conn = info->socket_context;
    /* The first head has its deadline since the connection came. */
    if (request->conn->used)
        atomic_store(&request->conn->deadline_ms, sp_time_monotonic_ms() + server->head_timeout_ms);
    request->conn->used = true;
    return request;
}

void sp_http_on_completed(void *cls, struct MHD_Connection *connection, void **con_cls,
                          enum MHD_RequestTerminationCode code)
{
    struct sp_http_server *server = cls;
    struct sp_http_request *request = *con_cls;
    if (!request)
        return;
    *con_cls = NULL;
    if (request->linger)
        sp_http_linger(request->conn->fd);
    atomic_store(&request->conn->idle, true);
    atomic_store(&request->conn->deadline_ms, from_now(server, server->idle_timeout_ms));
    sp_http_request_unref(request);
}

/* Takes over error. Answers now, or lets a short body come in first; see the head of this file. */
static void refuse(struct sp_http_request *request, GError *error)
{
    const struct sp_http_head *head = &request->head;
    request->refusal = error;
    if (head->chunked || head->content_length > DRAIN_MAX_BYTES ||
        (head->content_length > 0 && head->expects_continue)) {
        request->linger = true;
        sp_http_respond_error(request, error);
    }
}

static GError *invalid(const char *what)
{
    return g_error_new(SP_ERROR, SP_ERROR_INVALID_REQUEST, "the request has %s", what);
}

static GError *too_large(size_t max_bytes)
{
    return g_error_new(SP_ERROR, SP_ERROR_PAYLOAD_TOO_LARGE,
                       "the request body has more than %zu bytes", max_bytes);
}

static bool find_route(struct sp_http_request *request, GError **error)
{
    g_autofree char *allow = NULL;
    const char *query = strchr(request->target, '?');
    if (!sp_http_routes_match(&request->server->routes, request->method, request->path,
                              &request->match, &allow, error)) {
        if (allow) {
            request->refusal_status = MHD_HTTP_METHOD_NOT_ALLOWED;
            sp_http_add_header(request, "Allow", allow);
        }
        return false;
    }
    request->query = sp_http_query_parse(query ? query + 1 : NULL, error);
    return request->query != NULL;
}

static void set_missing(GError **error)
{
    if (error && !*error)
        g_set_error_literal(error, SP_ERROR, SP_ERROR_INTERNAL, "refused without a reason");
}

static void begin(struct sp_http_request *request, const char *version)
{
    const char *problem = NULL;
    GError *error = NULL;
    if (!sp_http_head_check(request->mhd, request->method, request->target, request->target_at,
                            version, &request->head, &problem)) {
        /* The framing cannot be trusted: answer and close. */
        request->linger = true;
        request->refusal = invalid(problem);
        sp_http_respond_error(request, request->refusal);
        return;
    }
    if (!find_route(request, &error)) {
        refuse(request, error);
        return;
    }
    const struct sp_http_route *route = request->match.route;
    if (route->authorize && !route->authorize(request, request->server->user, &error)) {
        set_missing(&error);
        refuse(request, error);
        return;
    }
    if (!route->on_body && request->head.content_length > route->max_body_bytes) {
        refuse(request, too_large(route->max_body_bytes));
        return;
    }
    if (!route->on_body && (request->head.chunked || request->head.content_length > 0))
        atomic_store(&request->conn->deadline_ms,
                     sp_time_monotonic_ms() + request->server->body_timeout_ms);
}

static bool collect(struct sp_http_request *request, const char *bytes, size_t len, GError **error)
{
    const size_t max_bytes = request->match.route->max_body_bytes;
    if (request->received > max_bytes) {
        if (error)
            *error = too_large(max_bytes);
        return false;
    }
    if (!request->collected)
        request->collected =
            g_byte_array_sized_new((guint)MIN(request->head.content_length, 65536));
    g_byte_array_append(request->collected, (const guint8 *)bytes, (guint)len);
    return true;
}

/* MHD_NO closes the connection. */
static enum MHD_Result take_body(struct sp_http_request *request, const char *bytes, size_t len)
{
    GError *error = NULL;
    request->received += len;
    if (request->refusal)
        return MHD_YES;
    const struct sp_http_route *route = request->match.route;
    const int64_t begin_ms = sp_time_monotonic_ms();
    const bool taken = route->on_body ? route->on_body(request, bytes, len, &error)
                                      : collect(request, bytes, len, &error);
    if (taken) {
        if (sp_time_monotonic_ms() - begin_ms > 200)
            sp_http_request_touch(request);
        return MHD_YES;
    }
    set_missing(&error);
    request->refusal = error;
    if (!request->head.chunked &&
        request->head.content_length - request->received <= DRAIN_MAX_BYTES)
        return MHD_YES;
    sp_http_refuse_raw(request, error);
    return MHD_NO;
}

static void finish(struct sp_http_request *request)
{
    atomic_store(&request->conn->deadline_ms, INT64_MAX);
    if (request->refusal) {
        sp_http_respond_error(request, request->refusal);
        return;
    }
    request->match.route->handler(request, request->server->user);
    if (!request->answered) {
        g_autoptr(GError) error =
            g_error_new_literal(SP_ERROR, SP_ERROR_INTERNAL, "the request was not answered");
        sp_http_respond_error(request, error);
    }
}

enum MHD_Result sp_http_on_access(void *cls, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_size, void **con_cls)
{
    struct sp_http_request *request = *con_cls;
    if (request->stage == SP_HTTP_STAGE_HEAD) {
        request->stage = SP_HTTP_STAGE_BODY;
        request->method = method;
        atomic_store(&request->conn->idle, false);
        atomic_store(&request->conn->deadline_ms, INT64_MAX);
        begin(request, version);
        return MHD_YES;
    }
    if (*upload_size > 0) {
        const size_t len = *upload_size;
        *upload_size = 0;
        return take_body(request, upload, len);
    }
    if (request->stage == SP_HTTP_STAGE_BODY) {
        request->stage = SP_HTTP_STAGE_DONE;
        finish(request);
    }
    return MHD_YES;
}
