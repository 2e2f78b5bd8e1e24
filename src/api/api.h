/* What the files of the API share: the server's parts, and one request on its way through them. */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/metrics.h"
#include "base/ids.h"
#include "base/json.h"
#include "http/client.h"
#include "http/server.h"
#include "store/store.h"

struct sp_api {
    struct sp_store *store;
    struct sp_metrics *metrics;
    struct sp_workers *workers; /* worker_client.h */
    char node_key_hash[SP_HASH_HEX];
    gint stopping; /* atomic: long waits end */
};

struct sp_api_route;

/* A request that has passed authentication. */
struct sp_api_call {
    struct sp_api *api;
    struct sp_http_request *http;
    const struct sp_api_route *route;
    const struct sp_key_row *key; /* borrowed; NULL on routes without an API key */
    json_t *body;                 /* a checked object on POST and PATCH, else NULL */
    struct sp_idempotency idem;
    int64_t wait_ms; /* of Prefer: wait; 0: none */
    int status;      /* what was answered */
};

/* A handler answers with sp_api_reply() and the like and returns true, or returns false with
 * *error, which becomes the answer. */
typedef bool (*sp_api_handler)(struct sp_api_call *call, GError **error);

struct sp_api_route {
    const char *method, *pattern;
    sp_api_handler handler;
    enum { SP_API_OPEN, SP_API_KEY, SP_API_NODE } auth;
    size_t max_body_bytes;
};
/* All routes (routes.c), ended by a NULL method; the rows of the HTTP server, which call them. */
extern const struct sp_api_route sp_api_routes[];
extern const struct sp_http_route sp_api_http_routes[];

/* Takes over value. */
void sp_api_reply(struct sp_api_call *call, int status, json_t *value);
void sp_api_reply_bytes(struct sp_api_call *call, int status, const char *content_type,
                        const void *bytes, size_t len);

/* --- auth.c: authorize hooks of the HTTP server. user is the struct sp_api. */
bool sp_api_authorize_key(struct sp_http_request *request, void *user, GError **error);
bool sp_api_authorize_node(struct sp_http_request *request, void *user, GError **error);

/* --- list.c: paging of lists */
struct sp_page {
    unsigned limit;
    bool has_cursor;
    char cursor[160];
};
/* Reads limit and cursor. allowed: NULL-terminated names of further parameters; one that ends in
 * '.' is a prefix. Any other parameter is an error that names it. */
bool sp_api_page(struct sp_api_call *call, const char *id_prefix, const char *const *allowed,
                 struct sp_page *ret, GError **error);
/* {items, next_cursor}: rows holds up to limit + 1 rows, of which the last only shows that there
 * are more. render gives the JSON of a row, id_of what the cursor holds. */
json_t *sp_api_list(struct sp_api_call *call, GPtrArray *rows, unsigned limit,
                    json_t *(*render)(struct sp_api_call *call, const void *row),
                    const char *(*id_of)(const void *row));
/* A query parameter that has to be one of a table's names; *ret NULL when absent. */
bool sp_api_query_choice(struct sp_api_call *call, const char *name, const char *const *choices,
                         const char **ret, GError **error);

/* --- wait.c: operations */
/* Waits for the operation to end, at most wait_ms of the call; gives it as it is then. */
struct sp_operation_row *sp_api_wait(struct sp_api_call *call, const char *operation_id,
                                     GError **error);
/* Answers about an operation. extra (taken over, may be NULL) is put beside "operation". An
 * operation that has failed while the caller waited is answered by its own error, with its error
 * status, and the same members beside "error". done_status is for one that has succeeded; 202 for
 * one that goes on. */
void sp_api_reply_operation(struct sp_api_call *call, const struct sp_operation_row *operation,
                            json_t *extra, int done_status);

/* Counts how long the operation took, if it has just ended well: reports are repeated, and only a
 * fresh end counts (worker_lifecycle.c). */
void sp_api_measure(struct sp_api_call *call, const char *operation_id);

/* --- the path's sandbox (sandboxes.c) */
/* Its id; one that has not the form of an id is not looked up. For handlers that must answer a
 * repeated request when the sandbox has gone. */
bool sp_api_sandbox_id(struct sp_api_call *call, const char **ret, GError **error);
/* Its row; notes that it was used. */
struct sp_sandbox_row *sp_api_sandbox(struct sp_api_call *call, GError **error);
/* A sandbox as the API shows it, with what this server knows beside its row. */
json_t *sp_api_render_sandbox(struct sp_api_call *call, const struct sp_sandbox_row *sandbox);
/* sp_api_sandbox(); SP_ERROR_FAILED_PRECONDITION, saying the state, unless it runs. */
struct sp_sandbox_row *sp_api_running_sandbox(struct sp_api_call *call, GError **error);
