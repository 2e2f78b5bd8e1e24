/*
 * HTTP/1.1 server for the API and the data plane, on libmicrohttpd (a thread per connection, poll).
 *
 * A server has a table of routes. A handler runs in the connection's own thread and may block. It
 * answers exactly once with one of the sp_http_respond_ functions; a handler that returns without
 * having answered is a 500. Errors have the API's form
 * {"error":{"code","message","field"?,"request_id","retry_after_ms"?}}.
 *
 * Refused before any handler (400, connection closed): Content-Length together with
 * Transfer-Encoding, repeated Content-Length, NUL, bare CR or bare LF in the head, folded headers,
 * more than 64 headers, an encoded slash or NUL, "." or ".." in the path, bytes that are not UTF-8.
 * A request head has 10 s, an idle keep-alive connection 75 s, a client that neither sends nor
 * takes bytes 75 s. A head has at most about 48 KiB. A line that is no HTTP at all gets the plain
 * 400, 414, 431 or 505 of libmicrohttpd without a JSON body, or is closed without an answer. Every
 * other answer carries X-Request-Id and, unless the handler sets Cache-Control itself,
 * Cache-Control: no-store.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct sp_http_server;
struct sp_http_request;

#define SP_HTTP_MAX_PARAMS 4

/* Called with each piece of the request body of a streamed route as it arrives, before the handler;
 * may block (that is the flow control). false with *error set: the request is answered with that
 * error and the rest of the body is not read. */
typedef bool (*sp_http_body_fn)(struct sp_http_request *request, const char *bytes, size_t len,
                                GError **error);

struct sp_http_route {
    const char *method;  /* "GET" */
    const char *pattern; /* "/v1/sandboxes/{}/pause": {} matches one non-empty segment */
    void (*handler)(struct sp_http_request *request, void *user);
    /* Runs once after the head was read and before any body byte is taken: authentication. false
     * with *error set answers with that error. NULL: open to everybody. */
    bool (*authorize)(struct sp_http_request *request, void *user, GError **error);
    /* NULL: the body is collected up to max_body_bytes (413 beyond). */
    sp_http_body_fn on_body;
    size_t max_body_bytes;
    /* A GET route also serves HEAD (the handler runs, the body is not sent), unless this is set:
     * for handlers that start something. HEAD is a 405 then. */
    bool refuse_head;
};

struct sp_http_server_config {
    const char *address;                /* "127.0.0.1:7070" or "[::1]:7070"; port 0: any free one */
    const struct sp_http_route *routes; /* ended by a row with a NULL method; outlives the server */
    void *user;                         /* passed to handler and authorize */
    unsigned max_connections;           /* 0: 1024; one more is reset */
    int64_t head_timeout_ms;            /* 0: 10 s, for a request head */
    int64_t idle_timeout_ms;            /* 0: 75 s, between requests and without progress in one */
    int64_t body_timeout_ms;            /* 0: 120 s, for a whole collected body */
};

/* Binds and serves. NULL with *error on failure (address in use, …). */
struct sp_http_server *sp_http_server_start(const struct sp_http_server_config *config,
                                            GError **error);
/* "127.0.0.1:7070" as really bound. Borrowed. */
const char *sp_http_server_address(const struct sp_http_server *server);
/* Takes no new connections, closes idle ones, waits until running handlers and streams have ended
 * (these look at sp_http_server_stopping(); at most grace_ms, then their sockets are shut down) and
 * frees the server. Blocks until the last handler has returned, so a handler that waits for
 * something else than its client must look at sp_http_server_stopping() or sp_http_client_gone().
 */
void sp_http_server_stop(struct sp_http_server *server, unsigned grace_ms);
/* True once stop() has begun: long waits and streams should end. */
bool sp_http_server_stopping(const struct sp_http_server *server);

/* --- the request: everything returned is borrowed and lives as long as the request */
const char *sp_http_method(const struct sp_http_request *request);
const char *sp_http_path(const struct sp_http_request *request);
/* The n-th {} of the pattern, percent-decoded. */
const char *sp_http_param(const struct sp_http_request *request, unsigned n);
/* A header by its case-insensitive name; NULL when absent. */
const char *sp_http_header(struct sp_http_request *request, const char *name);
/* A query parameter; NULL when absent. Percent-decoded. */
const char *sp_http_query(struct sp_http_request *request, const char *name);
/* Calls fn for each query parameter in order; stops when fn returns false. */
void sp_http_query_each(struct sp_http_request *request,
                        bool (*fn)(void *user, const char *name, const char *value), void *user);
/* The token of "Authorization: Bearer …"; NULL when there is none or it is of another form. */
const char *sp_http_bearer(struct sp_http_request *request);
/* The collected body; may be empty. */
GBytes *sp_http_body(struct sp_http_request *request);
/* The body as a JSON object (an empty body is {}). NULL with an invalid_request error. Caller owns.
 */
json_t *sp_http_body_json(struct sp_http_request *request, GError **error);
/* "req_…", made for each request; goes into errors and the log. */
const char *sp_http_request_id(const struct sp_http_request *request);
/* Something of the handler's own, kept with the request and freed with it. */
void sp_http_set_data(struct sp_http_request *request, void *data, GDestroyNotify free_fn);
void *sp_http_data(const struct sp_http_request *request);
/* True when the client has closed its end (poll on the socket; does not block). */
bool sp_http_client_gone(const struct sp_http_request *request);
struct sp_http_server *sp_http_request_server(const struct sp_http_request *request);

/* --- the answer */
/* Adds a response header; before responding. */
void sp_http_add_header(struct sp_http_request *request, const char *name, const char *value);
/* A JSON answer; takes over the reference. */
void sp_http_respond_json(struct sp_http_request *request, int status, json_t *value);
/* The error's own status and the error body. Borrows error. */
void sp_http_respond_error(struct sp_http_request *request, const GError *error);
/* The same with retry_after_ms in the body and a Retry-After header. */
void sp_http_respond_error_retry(struct sp_http_request *request, const GError *error,
                                 int64_t retry_after_ms);
/* Raw bytes; borrows. */
void sp_http_respond_bytes(struct sp_http_request *request, int status, const char *content_type,
                           const void *bytes, size_t len);

/* Pulls the next bytes of a streamed answer: waits until there are some and returns their number
 * (1…max), 0 for a proper end, -1 to cut the connection (the client sees a broken transfer). Runs
 * in the connection's thread, may block, should look at sp_http_client_gone() and
 * sp_http_server_stopping() at least every second. */
typedef ssize_t (*sp_http_pull_fn)(void *source, char *buffer, size_t max);
/* A streamed answer (chunked). free_source is called exactly once, also when the client has gone.
 * Small socket buffers (send buffer 256 KiB), TCP_NODELAY. The request is valid until free_source.
 */
void sp_http_respond_stream(struct sp_http_request *request, int status, const char *content_type,
                            sp_http_pull_fn pull, void *source, GDestroyNotify free_source);
/* The same with a Content-Length instead of chunks: a file. The source must give exactly len_bytes;
 * if it ends early the connection is cut. */
void sp_http_respond_stream_sized(struct sp_http_request *request, int status,
                                  const char *content_type, uint64_t len_bytes,
                                  sp_http_pull_fn pull, void *source, GDestroyNotify free_source);
