#include "cli/attachment.h"

#include <gio/gio.h>
#include <string.h>

#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"

#define SIGNAL_TIMEOUT_MS 5000
/* A token is renewed this long before it expires: a refused upload could not be sent again. */
#define RENEW_EARLY_MS 20000

struct sp_attachment {
    struct sp_client *api; /* borrowed */
    char *session_id;
    char **origins; /* strv */
    bool any_port;
    GMutex lock;
    GPtrArray *clients;  /* under the lock: of struct sp_http_client *; the last one is current */
    int64_t renew_at_ms; /* under the lock: real time from which the token counts as stale */
};

static bool is_loopback(const char *host)
{
    if (g_ascii_strcasecmp(host, "localhost") == 0)
        return true;
    g_autoptr(GInetAddress) address = g_inet_address_new_from_string(host);
    return address && g_inet_address_get_is_loopback(address);
}

static int port_of(GUri *uri)
{
    if (g_uri_get_port(uri) > 0)
        return g_uri_get_port(uri);
    return strcmp(g_uri_get_scheme(uri), "https") == 0 ? 443 : 80;
}

static bool same_origin(GUri *uri, const char *origin, bool any_port)
{
    g_autoptr(GUri) allowed = g_uri_parse(origin, G_URI_FLAGS_NONE, NULL);
    if (!allowed || !g_uri_get_host(allowed))
        return false;
    if (g_ascii_strcasecmp(g_uri_get_host(uri), g_uri_get_host(allowed)) != 0)
        return false;
    return any_port || (strcmp(g_uri_get_scheme(uri), g_uri_get_scheme(allowed)) == 0 &&
                        port_of(uri) == port_of(allowed));
}

static bool origin_allowed(GUri *uri, const char *const *origins, bool any_port)
{
    for (; *origins; origins++) {
        if (same_origin(uri, *origins, any_port))
            return true;
    }
    return false;
}

/* NULL when the origin (what stands before the path) is right, else what is wrong with it. */
static const char *origin_fault(GUri *uri, const char *const *origins, bool any_port)
{
    const char *scheme = uri ? g_uri_get_scheme(uri) : NULL;
    const char *host = uri ? g_uri_get_host(uri) : NULL;
    if (!host || !*host || (strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0))
        return "is no http URL";
    if (g_uri_get_userinfo(uri) || g_uri_get_query(uri) || g_uri_get_fragment(uri) ||
        *g_uri_get_path(uri))
        return "has parts that it must not have";
    if (!origin_allowed(uri, origins, any_port))
        return "is not on the configured data plane (SPACE_DATA_URL)";
    if (strcmp(scheme, "https") != 0 && !is_loopback(host))
        return "is neither https nor on this machine";
    return NULL;
}

bool sp_attach_url_check(const char *url, const char *session_id, const char *const *origins,
                         bool any_port, char **ret_origin, GError **error)
{
    /* The path is compared as it is written, before a parser could make another one of it. */
    g_autofree char *path = g_strdup_printf("/v1/attach/%s/events", session_id);
    bool path_ok = g_str_has_suffix(url, path);
    g_autofree char *before = g_strndup(url, path_ok ? strlen(url) - strlen(path) : 0);
    g_autoptr(GUri) uri = g_uri_parse(before, G_URI_FLAGS_ENCODED, NULL);
    const char *fault =
        path_ok ? origin_fault(uri, origins, any_port) : "does not end in this session's path";
    if (fault) {
        g_set_error(error, SP_ERROR, SP_ERROR_PERMISSION_DENIED,
                    "the token was not sent: the attach URL %s %s", url, fault);
        return false;
    }
    const char *host = g_uri_get_host(uri);
    *ret_origin = g_strdup_printf(strchr(host, ':') ? "%s://[%s]:%d" : "%s://%s:%d",
                                  g_uri_get_scheme(uri), host, port_of(uri));
    return true;
}

/* The origins of the data plane that this client trusts; see sp_attachment_new(). */
static void find_origins(struct sp_attachment *a)
{
    const char *configured = sp_client_data_url(a->api);
    g_autoptr(GPtrArray) origins = g_ptr_array_new();
    if (configured) {
        g_ptr_array_add(origins, g_strdup(configured));
    } else {
        g_autoptr(json_t) nodes = sp_client_get(a->api, "/v1/nodes", NULL);
        size_t i;
        json_t *node;
        json_array_foreach(json_object_get(nodes, "items"), i, node)
        {
            const char *url = json_string_value(json_object_get(node, "data_url"));
            if (url)
                g_ptr_array_add(origins, g_strdup(url));
        }
    }
    if (origins->len == 0) {
        g_ptr_array_add(origins, g_strdup(sp_client_url(a->api)));
        a->any_port = true;
    }
    g_ptr_array_add(origins, NULL);
    a->origins = (char **)g_ptr_array_free(g_steal_pointer(&origins), FALSE);
}

/* Takes over url and token of {attach:{url, token}} after the check. */
static bool add_client(struct sp_attachment *a, json_t *answer, GError **error)
{
    json_t *attach = json_object_get(answer, "attach");
    const char *url = json_string_value(json_object_get(attach, "url"));
    const char *token = json_string_value(json_object_get(attach, "token"));
    if (!url || !token) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_INTERNAL,
                            "the server gave no attach URL and token");
        return false;
    }
    g_autofree char *origin = NULL;
    if (!sp_attach_url_check(url, a->session_id, (const char *const *)a->origins, a->any_port,
                             &origin, error))
        return false;
    g_ptr_array_add(a->clients, sp_http_client_new(origin, token));
    json_t *expires = json_object_get(attach, "expires_at");
    g_autoptr(GDateTime) expiry =
        json_is_string(expires) ? g_date_time_new_from_iso8601(json_string_value(expires), NULL)
                                : NULL;
    a->renew_at_ms = expiry ? g_date_time_to_unix(expiry) * 1000 - RENEW_EARLY_MS : G_MAXINT64;
    return true;
}

static void free_client(void *client)
{
    sp_http_client_free(client);
}

struct sp_attachment *sp_attachment_new(struct sp_client *api, json_t *answer, GError **error)
{
    const char *id = json_string_value(json_object_get(json_object_get(answer, "session"), "id"));
    if (!id || !sp_id_valid(id, "ses")) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_INTERNAL, "the server named no session");
        return NULL;
    }
    struct sp_attachment *a = g_new0(struct sp_attachment, 1);
    g_mutex_init(&a->lock);
    a->api = api;
    a->session_id = g_strdup(id);
    a->clients = g_ptr_array_new_with_free_func(free_client);
    find_origins(a);
    if (add_client(a, answer, error))
        return a;
    sp_attachment_free(a);
    return NULL;
}

void sp_attachment_free(struct sp_attachment *a)
{
    if (!a)
        return;
    g_ptr_array_unref(a->clients);
    g_strfreev(a->origins);
    g_free(a->session_id);
    g_mutex_clear(&a->lock);
    g_free(a);
}

const char *sp_attachment_session_id(const struct sp_attachment *a)
{
    return a->session_id;
}

char *sp_attachment_path(const struct sp_attachment *a, const char *verb)
{
    return g_strdup_printf("/v1/attach/%s/%s", a->session_id, verb);
}

static struct sp_http_client *current(struct sp_attachment *a, bool *ret_stale)
{
    g_mutex_lock(&a->lock);
    struct sp_http_client *client = a->clients->pdata[a->clients->len - 1];
    *ret_stale = sp_time_now_ms() >= a->renew_at_ms;
    if (*ret_stale)
        a->renew_at_ms = G_MAXINT64; /* one try; a token that is refused is renewed anyway */
    g_mutex_unlock(&a->lock);
    return client;
}

struct sp_http_client *sp_attachment_client(struct sp_attachment *a)
{
    bool stale;
    struct sp_http_client *client = current(a, &stale);
    if (!stale || !sp_attachment_renew(a, client, NULL))
        return client;
    return current(a, &stale);
}

bool sp_attachment_renew(struct sp_attachment *a, struct sp_http_client *stale, GError **error)
{
    g_mutex_lock(&a->lock);
    bool renewed = a->clients->pdata[a->clients->len - 1] != stale;
    g_mutex_unlock(&a->lock);
    if (renewed)
        return true;
    g_autofree char *path = g_strdup_printf("/v1/sessions/%s/attachments", a->session_id);
    g_autoptr(json_t) answer = sp_client_call(
        a->api, &(struct sp_client_request){.method = "POST", .path = path}, NULL, error);
    if (!answer)
        return false;
    g_mutex_lock(&a->lock);
    bool ok = add_client(a, answer, error);
    g_mutex_unlock(&a->lock);
    return ok;
}

bool sp_attachment_signal(struct sp_attachment *a, const char *signal, GError **error)
{
    g_autoptr(json_t) body = json_pack("{s:s}", "signal", signal);
    g_autofree char *path = sp_attachment_path(a, "signal");
    g_autoptr(json_t) answer = sp_http_call_json(sp_attachment_client(a), "POST", path, body,
                                                 SIGNAL_TIMEOUT_MS, NULL, error);
    return answer != NULL;
}
