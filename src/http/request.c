#include "http/internal.h"

#include <poll.h>
#include <string.h>

#include "base/json.h"

struct sp_http_request *sp_http_request_new(struct sp_http_server *server,
                                            struct MHD_Connection *mhd, const char *target)
{
    struct sp_http_request *request = g_new0(struct sp_http_request, 1);
    request->refs = 1;
    request->server = server;
    request->mhd = mhd;
    request->target = g_strdup(target);
    request->target_at = target;
    request->path = g_strndup(target, strcspn(target, "?"));
    sp_id_new("req", request->id);
    return request;
}

void sp_http_request_unref(struct sp_http_request *request)
{
    if (--request->refs > 0)
        return;
    if (request->data_free)
        request->data_free(request->data);
    sp_http_match_clear(&request->match);
    g_clear_pointer(&request->query, g_ptr_array_unref);
    g_clear_pointer(&request->headers, g_ptr_array_unref);
    g_clear_pointer(&request->collected, g_byte_array_unref);
    g_clear_pointer(&request->body, g_bytes_unref);
    g_clear_error(&request->refusal);
    g_free(request->bearer);
    g_free(request->path);
    g_free(request->target);
    g_free(request);
}

void sp_http_request_touch(struct sp_http_request *request)
{
    /* Going through 0 is what makes libmicrohttpd take the present time. */
    MHD_set_connection_option(request->mhd, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    MHD_set_connection_option(request->mhd, MHD_CONNECTION_OPTION_TIMEOUT,
                              (unsigned)((request->server->idle_timeout_ms + 999) / 1000));
}

const char *sp_http_method(const struct sp_http_request *request)
{
    return request->method;
}

const char *sp_http_path(const struct sp_http_request *request)
{
    return request->path;
}

const char *sp_http_param(const struct sp_http_request *request, unsigned n)
{
    return n < SP_HTTP_MAX_PARAMS ? request->match.params[n] : NULL;
}

const char *sp_http_header(struct sp_http_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->mhd, MHD_HEADER_KIND, name);
}

void sp_http_query_each(struct sp_http_request *request,
                        bool (*fn)(void *user, const char *name, const char *value), void *user)
{
    for (guint i = 0; request->query && i < request->query->len; i += 2) {
        if (!fn(user, request->query->pdata[i], request->query->pdata[i + 1]))
            return;
    }
}

const char *sp_http_query(struct sp_http_request *request, const char *name)
{
    for (guint i = 0; request->query && i < request->query->len; i += 2) {
        if (strcmp(request->query->pdata[i], name) == 0)
            return request->query->pdata[i + 1];
    }
    return NULL;
}

struct authorization {
    unsigned n;
    const char *value;
};

static enum MHD_Result on_authorization(void *cls, enum MHD_ValueKind kind, const char *name,
                                        const char *value)
{
    struct authorization *found = cls;
    if (value && g_ascii_strcasecmp(name, "Authorization") == 0) {
        found->n++;
        found->value = value;
    }
    return MHD_YES;
}

const char *sp_http_bearer(struct sp_http_request *request)
{
    struct authorization found = {0};
    MHD_get_connection_values(request->mhd, MHD_HEADER_KIND, on_authorization, &found);
    if (found.n != 1 || g_ascii_strncasecmp(found.value, "Bearer ", 7) != 0)
        return NULL;
    const char *token = found.value + 7 + strspn(found.value + 7, " ");
    /* token68 of RFC 7235, and nothing behind it. */
    size_t len = 0;
    while (g_ascii_isalnum(token[len]) || (token[len] && strchr("-._~+/=", token[len])))
        len++;
    if (len == 0 || token[len] != '\0')
        return NULL;
    g_free(request->bearer);
    request->bearer = g_strndup(token, len);
    return request->bearer;
}

GBytes *sp_http_body(struct sp_http_request *request)
{
    if (!request->body) {
        request->body = request->collected
                            ? g_byte_array_free_to_bytes(g_steal_pointer(&request->collected))
                            : g_bytes_new_static("", 0);
    }
    return request->body;
}

json_t *sp_http_body_json(struct sp_http_request *request, GError **error)
{
    gsize len = 0;
    const char *bytes = g_bytes_get_data(sp_http_body(request), &len);
    if (len == 0)
        return json_object();
    g_autoptr(json_t) value = sp_json_parse(bytes, len, error);
    if (value && !json_is_object(value)) {
        sp_error_set_field(error, "", "the request body must be a JSON object");
        return NULL;
    }
    return g_steal_pointer(&value);
}

const char *sp_http_request_id(const struct sp_http_request *request)
{
    return request->id;
}

void sp_http_set_data(struct sp_http_request *request, void *data, GDestroyNotify free_fn)
{
    if (request->data_free)
        request->data_free(request->data);
    request->data = data;
    request->data_free = free_fn;
}

void *sp_http_data(const struct sp_http_request *request)
{
    return request->data;
}

bool sp_http_client_gone(const struct sp_http_request *request)
{
    struct pollfd p = {.fd = request->conn->fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

struct sp_http_server *sp_http_request_server(const struct sp_http_request *request)
{
    return request->server;
}
