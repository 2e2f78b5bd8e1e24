/*
 * The transport. Each call borrows an easy handle of libcurl, with the connection that it keeps
 * open, and gives it back: so calls of many threads at once have a connection each, and a later
 * call reuses one.
 */
#include "http/client.h"

#include <curl/curl.h>
#include <string.h>
#include <sys/socket.h>

#include "base/error.h"
#include "base/json.h"
#include "base/time.h"

#define COLLECT_MAX_BYTES ((gsize)64 * 1024 * 1024)
#define CONNECT_TIMEOUT_MS 10000
#define MAX_IDLE_HANDLES 64u
#define CONNECT_RETRY_US 20000

struct sp_http_client {
    char *base_url;
    char *authorization; /* a header line, or NULL */
    GMutex lock;
    GQueue idle; /* of CURL */
};

/* One call while it runs. */
struct transfer {
    CURL *curl;
    const struct sp_http_call *call;
    struct curl_slist *headers;
    GByteArray *body;
    char *text;         /* the JSON request */
    const char *failed; /* why one of our callbacks ended the call */
    char message[CURL_ERROR_SIZE];
};

struct sp_http_client *sp_http_client_new(const char *base_url, const char *bearer)
{
    static gsize ready = 0;
    if (g_once_init_enter(&ready)) {
        curl_global_init(CURL_GLOBAL_DEFAULT);
        g_once_init_leave(&ready, 1);
    }
    struct sp_http_client *client = g_new0(struct sp_http_client, 1);
    client->base_url = g_strdup(base_url);
    for (gsize len = strlen(base_url); len > 0 && client->base_url[len - 1] == '/'; len--)
        client->base_url[len - 1] = '\0';
    if (bearer)
        client->authorization = g_strconcat("Authorization: Bearer ", bearer, NULL);
    g_mutex_init(&client->lock);
    g_queue_init(&client->idle);
    return client;
}

void sp_http_client_free(struct sp_http_client *client)
{
    if (!client)
        return;
    g_queue_clear_full(&client->idle, curl_easy_cleanup);
    g_mutex_clear(&client->lock);
    g_free(client->base_url);
    g_free(client->authorization);
    g_free(client);
}

void sp_http_answer_clear(struct sp_http_answer *answer)
{
    g_clear_pointer(&answer->body, g_bytes_unref);
    answer->status = 0;
}

/* The most recently used one: its connection is the least likely to have been closed. */
static CURL *handle_borrow(struct sp_http_client *client)
{
    g_mutex_lock(&client->lock);
    CURL *curl = g_queue_pop_head(&client->idle);
    g_mutex_unlock(&client->lock);
    return curl ? curl : curl_easy_init();
}

static void handle_return(struct sp_http_client *client, CURL *curl)
{
    curl_easy_reset(curl); /* keeps the connection */
    g_mutex_lock(&client->lock);
    g_queue_push_head(&client->idle, curl);
    CURL *surplus = client->idle.length > MAX_IDLE_HANDLES ? g_queue_pop_tail(&client->idle) : NULL;
    g_mutex_unlock(&client->lock);
    if (surplus)
        curl_easy_cleanup(surplus);
}

/* --- callbacks of libcurl; user is the transfer */
static size_t on_write(char *bytes, size_t size, size_t count, void *user)
{
    struct transfer *t = user;
    const size_t len = size * count;
    long status = 0;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
    if (t->call->on_data && status >= 200 && status < 300) {
        if (t->call->on_data(t->call->user, bytes, len))
            return len;
        t->failed = "ended by the reader";
        return CURL_WRITEFUNC_ERROR;
    }
    if (len > COLLECT_MAX_BYTES - t->body->len) {
        t->failed = "the answer is longer than 64 MiB";
        return CURL_WRITEFUNC_ERROR;
    }
    g_byte_array_append(t->body, (const guint8 *)bytes, (guint)len);
    return len;
}

static size_t on_read(char *buffer, size_t size, size_t count, void *user)
{
    struct transfer *t = user;
    const ssize_t n = t->call->on_upload(t->call->user, buffer, size * count);
    if (n >= 0 && (size_t)n <= size * count)
        return (size_t)n;
    t->failed = "the upload was aborted";
    return CURL_READFUNC_ABORT;
}

static int on_progress(void *user, curl_off_t down_total, curl_off_t down, curl_off_t up_total,
                       curl_off_t up)
{
    struct transfer *t = user;
    if (!t->call->cancelled(t->call->user))
        return 0;
    t->failed = "cancelled";
    return 1;
}

/* libcurl 7.88 itself would leave the socket open in programs that other threads start. */
static curl_socket_t on_socket(void *user, curlsocktype purpose, struct curl_sockaddr *address)
{
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

/* --- setting up */
static bool is_line(const char *text)
{
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            return false;
    }
    return true;
}

static bool add_header(struct transfer *t, const char *line, GError **error)
{
    struct curl_slist *longer = is_line(line) ? curl_slist_append(t->headers, line) : NULL;
    if (!longer) {
        /* Not the line itself: it may be a secret. */
        g_set_error_literal(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                            "a request header holds a control character");
        return false;
    }
    t->headers = longer;
    return true;
}

static bool has_header(const struct sp_http_call *call, const char *prefix)
{
    for (const char *const *line = call->headers; line && *line; line++) {
        if (g_ascii_strncasecmp(*line, prefix, strlen(prefix)) == 0)
            return true;
    }
    return false;
}

static bool set_headers(const struct sp_http_client *client, struct transfer *t, GError **error)
{
    const struct sp_http_call *call = t->call;
    if (client->authorization && !has_header(call, "Authorization:") &&
        !add_header(t, client->authorization, error))
        return false;
    const char *type = call->json ? "Content-Type: application/json"
                       : call->body || call->on_upload
                           ? "Content-Type: application/octet-stream"
                           : "Content-Type:"; /* libcurl's own guess is a form */
    if (!has_header(call, "Content-Type:") && !add_header(t, type, error))
        return false;
    /* An upload may be refused before it is sent; other bodies are too short for the round trip. */
    if (!call->on_upload && !add_header(t, "Expect:", error))
        return false;
    for (const char *const *line = call->headers; line && *line; line++) {
        if (!add_header(t, *line, error))
            return false;
    }
    curl_easy_setopt(t->curl, CURLOPT_HTTPHEADER, t->headers);
    return true;
}

static void set_body(struct transfer *t)
{
    const struct sp_http_call *call = t->call;
    const bool plain_get = strcmp(call->method, "GET") == 0;
    if (call->on_upload) {
        curl_easy_setopt(t->curl, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(t->curl, CURLOPT_READFUNCTION, on_read);
        curl_easy_setopt(t->curl, CURLOPT_READDATA, t);
        /* libcurl repeats a call whose kept connection had been closed; a stream cannot be
         * repeated. */
        curl_easy_setopt(t->curl, CURLOPT_FRESH_CONNECT, 1L);
    } else if (call->json || call->body) {
        const char *bytes = call->json ? t->text : call->body;
        const size_t len = call->json ? strlen(t->text) : call->body_len;
        curl_easy_setopt(t->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)len);
        curl_easy_setopt(t->curl, CURLOPT_POSTFIELDS, len ? bytes : "");
    } else if (strcmp(call->method, "HEAD") == 0) {
        curl_easy_setopt(t->curl, CURLOPT_NOBODY, 1L);
    } else if (!plain_get && strcmp(call->method, "DELETE") != 0) {
        curl_easy_setopt(t->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)0);
        curl_easy_setopt(t->curl, CURLOPT_POSTFIELDS, "");
    }
    curl_easy_setopt(t->curl, CURLOPT_CUSTOMREQUEST, call->method);
}

static void set_transport(struct transfer *t)
{
    CURL *curl = t->curl;
    const int64_t timeout_ms = t->call->timeout_ms;
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, t->message);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_OPENSOCKETFUNCTION, on_socket);
    curl_easy_setopt(curl, CURLOPT_PROXY, "");
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(curl, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_TIMEOUT_MS);
    if (timeout_ms > 0)
        curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)timeout_ms);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_write);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, t);
    if (t->call->cancelled) {
        curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
        curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
        curl_easy_setopt(curl, CURLOPT_XFERINFODATA, t);
    }
}

static CURLcode perform(struct transfer *t)
{
    const struct sp_http_call *call = t->call;
    int64_t deadline_ms = sp_time_monotonic_ms() + call->connect_retry_ms;
    CURLcode code;
    while ((code = curl_easy_perform(t->curl)) == CURLE_COULDNT_CONNECT &&
           sp_time_monotonic_ms() < deadline_ms &&
           !(call->cancelled && call->cancelled(call->user)))
        g_usleep(CONNECT_RETRY_US); /* no event tells when somebody listens */
    return code;
}

static bool transfer_run(struct sp_http_client *client, struct transfer *t, const char *url,
                         int *ret_status, GError **error)
{
    set_transport(t);
    set_body(t);
    if (!set_headers(client, t, error))
        return false;
    curl_easy_setopt(t->curl, CURLOPT_URL, url);
    const CURLcode code = perform(t);
    long status = 0;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
    if (code != CURLE_OK) {
        const char *why = t->failed       ? t->failed
                          : t->message[0] ? t->message
                                          : curl_easy_strerror(code);
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "%s %s%.*s: %s", t->call->method,
                    client->base_url, (int)strcspn(t->call->path, "?"), t->call->path, why);
        return false;
    }
    *ret_status = (int)status;
    return true;
}

static bool path_check(const char *path, GError **error)
{
    bool ok = path[0] == '/';
    for (const char *c = path; ok && *c; c++)
        ok = *c > 0x20 && *c < 0x7f && *c != '#';
    if (!ok)
        g_set_error_literal(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                            "the path of a request must start with a slash and be percent-encoded");
    return ok;
}

bool sp_http_call(struct sp_http_client *client, const struct sp_http_call *call,
                  struct sp_http_answer *ret, GError **error)
{
    if (!path_check(call->path, error))
        return false;
    struct transfer t = {.call = call, .curl = handle_borrow(client)};
    if (!t.curl) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "libcurl gives no handle");
        return false;
    }
    g_autofree char *url = g_strconcat(client->base_url, call->path, NULL);
    t.text = call->json ? sp_json_dump(call->json) : NULL;
    t.body = g_byte_array_new();
    int status = 0;
    const bool ok = transfer_run(client, &t, url, &status, error);
    handle_return(client, t.curl);
    curl_slist_free_all(t.headers);
    g_free(t.text);
    GBytes *body = g_byte_array_free_to_bytes(t.body);
    if (ok && !(call->on_data && status >= 200 && status < 300)) {
        *ret = (struct sp_http_answer){.status = status, .body = body};
        return true;
    }
    g_bytes_unref(body);
    if (ok)
        *ret = (struct sp_http_answer){.status = status};
    return ok;
}
