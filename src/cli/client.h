/*
 * The control plane's API as the verbs use it: JSON calls with the API key, waiting for operations,
 * retries of requests whose answer was lost.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "cli/client_conf.h"
#include "os/cleanup.h"

struct sp_client;

/* Server and key as sp_client_conf_resolve() finds them. */
struct sp_client *sp_client_open(const char *state_dir, GError **error);
/* The same with a server and key that are known; conf is copied. */
struct sp_client *sp_client_open_with(const struct sp_client_conf *conf);
void sp_client_free(struct sp_client *api);
SP_DEFINE_CLEANUP(struct sp_client, sp_client_free)
const char *sp_client_url(const struct sp_client *api);
/* The configured origin of the data plane; NULL when only the API is configured. */
const char *sp_client_data_url(const struct sp_client *api);

/* Asked at least once a second during a call; true ends it with SP_ERROR_UNAVAILABLE. fn NULL:
 * never. */
struct sp_client_cancel {
    bool (*fn)(void *user);
    void *user;
};

struct sp_client_request {
    const char *method;
    const char *path; /* percent-encoded */
    json_t *json;     /* borrowed, may be NULL */
    /* Prefer: wait=<seconds>; 0: not sent. The call's own deadline is 15 s more. */
    unsigned wait_s;
    const char *idempotency_key; /* NULL: a fresh one for every method but GET */
    struct sp_client_cancel cancel;
};

/* Sends a request; without an answer it is sent again (same Idempotency-Key), five times within
 * about three seconds. NULL with the error that the server named, or SP_ERROR_UNAVAILABLE.
 * ret_status may be NULL. */
json_t *sp_client_call(struct sp_client *api, const struct sp_client_request *request,
                       int *ret_status, GError **error);
json_t *sp_client_get(struct sp_client *api, const char *path, GError **error);
/* The same for an answer of any type; NULL with the error. The caller owns the bytes. */
GBytes *sp_client_get_bytes(struct sp_client *api, const char *path, GError **error);

/* All pages of a list; path may have a query. {"items":[…],"next_cursor":null}. At most 100 000
 * items. */
json_t *sp_client_list(struct sp_client *api, const char *path, GError **error);

/* Waits until an operation has ended, at most timeout_ms, asking for it again and again.
 * `operation` is what a call answered (borrowed). The ended operation; NULL with the operation's
 * own error when it failed, or SP_ERROR_UNAVAILABLE when the time was up or it was cancelled. */
json_t *sp_client_wait_operation(struct sp_client *api, json_t *operation, int64_t timeout_ms,
                                 struct sp_client_cancel cancel, GError **error);

/* "/v1/sandboxes/<id>" for an id or name: a name is looked up among the sandboxes that are not
 * deleted. SP_ERROR_NOT_FOUND; SP_ERROR_CONFLICT when two have the name. Free with g_free(). */
char *sp_client_resolve_sandbox(struct sp_client *api, const char *id_or_name, GError **error);
