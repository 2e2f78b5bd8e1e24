/*
 * What the files of the HTTP server share. Nothing outside src/http includes this.
 *
 * Threads: libmicrohttpd runs one thread a connection; everything in struct sp_http_request belongs
 * to that thread. struct sp_http_conn is shared with the deadline thread: its list links are
 * guarded by the server's lock, its two atomics by nothing.
 */
#pragma once

#include <microhttpd.h>
#include <stdatomic.h>

#include "base/error.h"
#include "base/ids.h"
#include "http/server.h"

/* --- connections and their deadlines (deadlines.c) */
struct sp_http_conn {
    GList link; /* data: the conn itself */
    int fd;
    bool used;                   /* a request line has been read from it */
    _Atomic bool idle;           /* between requests, or inside a head */
    _Atomic int64_t deadline_ms; /* monotonic; INT64_MAX: none */
};

struct sp_http_deadlines {
    GMutex lock;
    GCond changed; /* the first came, the last went, or quit */
    GQueue conns;  /* of struct sp_http_conn */
    bool quit;
    int64_t tick_ms; /* how late a deadline may be seen */
    GThread *thread;
};

void sp_http_deadlines_start(struct sp_http_deadlines *d, int64_t tick_ms);
/* Ends the thread; no connection may be left. */
void sp_http_deadlines_stop(struct sp_http_deadlines *d);
struct sp_http_conn *sp_http_deadlines_add(struct sp_http_deadlines *d, int fd,
                                           int64_t deadline_ms);
/* Takes the connection off the list and frees it. Must come before its socket is closed. */
void sp_http_deadlines_remove(struct sp_http_deadlines *d, struct sp_http_conn *conn);
/* Shuts down the sockets of all connections, or only of the idle ones. */
void sp_http_deadlines_shutdown(struct sp_http_deadlines *d, bool only_idle);
/* Waits until no connection is left; false at the deadline. */
bool sp_http_deadlines_wait_empty(struct sp_http_deadlines *d, int64_t deadline_ms);

/* --- routes (route.c) */
struct sp_http_compiled_route {
    const struct sp_http_route *route;
    char **segments; /* of the pattern; "{}" matches any */
};
struct sp_http_routes {
    struct sp_http_compiled_route *rows;
    unsigned n_rows;
};
struct sp_http_match {
    const struct sp_http_route *route;
    char *params[SP_HTTP_MAX_PARAMS]; /* owned */
};
void sp_http_routes_compile(struct sp_http_routes *routes, const struct sp_http_route *table);
void sp_http_routes_clear(struct sp_http_routes *routes);
/* Finds the route of a raw (still encoded) path. NULL route with *error: SP_ERROR_INVALID_REQUEST
 * for a malformed path, SP_ERROR_NOT_FOUND, or, with *ret_allow set (owned), a method that is not
 * served. */
bool sp_http_routes_match(const struct sp_http_routes *routes, const char *method, const char *path,
                          struct sp_http_match *ret, char **ret_allow, GError **error);
void sp_http_match_clear(struct sp_http_match *match);

/* --- targets (target.c) */
/* Percent-decodes len bytes of text into a new string. NULL with SP_ERROR_INVALID_REQUEST: a broken
 * escape, a NUL, bytes that are not UTF-8. plus_is_space: query rules. */
char *sp_http_percent_decode(const char *text, size_t len, bool plus_is_space, GError **error);
/* Splits a raw query ("a=1&b=2", NULL: none) into name, value, name, value, … (owned strings). */
GPtrArray *sp_http_query_parse(const char *query, GError **error);

/* --- the strict look at a request head (head.c) */
struct sp_http_head {
    bool chunked;
    bool expects_continue;
    uint64_t content_length; /* 0 when absent */
};
/* raw_target is the copy, and target_at the place in libmicrohttpd's buffer, of the request target.
 * false: *ret_problem is a constant text. */
bool sp_http_head_check(struct MHD_Connection *connection, const char *method,
                        const char *raw_target, const char *target_at, const char *version,
                        struct sp_http_head *ret, const char **ret_problem);

/* --- the server and its requests */
struct sp_http_server {
    struct MHD_Daemon *daemon;
    int listen_fd;
    char *address;
    struct sp_http_routes routes;
    void *user;
    int64_t head_timeout_ms, idle_timeout_ms, body_timeout_ms;
    struct sp_http_deadlines deadlines;
    _Atomic bool stopping;
};

enum sp_http_stage {
    SP_HTTP_STAGE_HEAD, /* the handler of libmicrohttpd has not been called yet */
    SP_HTTP_STAGE_BODY,
    SP_HTTP_STAGE_DONE,
};

struct sp_http_request {
    unsigned refs; /* one of libmicrohttpd's request, one of a streamed answer; same thread */
    struct sp_http_server *server;
    struct sp_http_conn *conn;
    struct MHD_Connection *mhd;
    enum sp_http_stage stage;
    char id[SP_ID_MAX];
    char *target; /* raw, with its query */
    const char *target_at;
    const char *method;
    char *path; /* raw */
    struct sp_http_match match;
    GPtrArray *query;
    struct sp_http_head head;
    uint64_t received; /* body bytes */
    GByteArray *collected;
    GBytes *body;
    char *bearer;
    GError *refusal;    /* answered once the body, which is thrown away, has been read */
    int refusal_status; /* 0: the error's own */
    GPtrArray *headers; /* name, value, …: of the answer; NULL: none yet */
    bool answered;
    bool linger; /* the client may still be sending: drain before the socket is closed */
    void *data;
    GDestroyNotify data_free;
};

struct sp_http_request *sp_http_request_new(struct sp_http_server *server,
                                            struct MHD_Connection *mhd, const char *target);
void sp_http_request_unref(struct sp_http_request *request);
/* Restarts libmicrohttpd's timer of inactivity: it does not see time that a callback spends. */
void sp_http_request_touch(struct sp_http_request *request);

/* The body of an error answer; free with g_free(). retry_after_ms < 0: none. */
char *sp_http_error_text(const struct sp_http_request *request, const GError *error,
                         int64_t retry_after_ms);

/* --- refusals in the middle of a request (refuse.c) */
/* Writes an error answer straight to the socket, for a moment when libmicrohttpd takes none. Waits
 * at most 2 s for a client that does not read. */
void sp_http_refuse_raw(struct sp_http_request *request, const GError *error);
/* Reads and drops what the client still sends, at most 2 s, so that closing the socket does not
 * reset the connection before the client has read the answer. */
void sp_http_linger(int fd);

/* --- the callbacks of libmicrohttpd (dispatch.c); cls is the server */
void *sp_http_on_target(void *cls, const char *uri, struct MHD_Connection *connection);
enum MHD_Result sp_http_on_access(void *cls, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_size, void **con_cls);
void sp_http_on_completed(void *cls, struct MHD_Connection *connection, void **con_cls,
                          enum MHD_RequestTerminationCode code);
void sp_http_on_connection(void *cls, struct MHD_Connection *connection, void **socket_context,
                           enum MHD_ConnectionNotificationCode code);

/* A listening socket on "host:port" with the server's socket options. -1 with *error. ret_address
 * gets the address as really bound (owned). (listen.c) */
int sp_http_listen(const char *address, char **ret_address, GError **error);
