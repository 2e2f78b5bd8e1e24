/* The server's way to its workers: the data listener's /node/v1 (docs/worker-protocol.md). */
#pragma once

#include "api/api.h"

struct sp_workers;

/* node_key: the bearer of every call. */
struct sp_workers *sp_workers_new(const char *node_key);
void sp_workers_free(struct sp_workers *workers);

struct sp_worker_call {
    const char *method, *path;
    json_t *json;       /* borrowed; NULL: no body */
    int64_t timeout_ms; /* of the whole call */
    /* Called about once a second while the call runs; NULL: never. */
    void (*tick)(void *user);
    void *user;
};
/* Asks the worker of a node on behalf of a request; ends early (SP_ERROR_UNAVAILABLE) when the
 * client has gone or the server stops. true only for a 2xx, whose body ret gets; a worker's error
 * answer becomes *error with its code, message and field. */
bool sp_worker_ask(struct sp_api_call *call, const char *node, const struct sp_worker_call *ask,
                   struct sp_http_answer *ret, GError **error);

/* Commands of POST …/exec that run now, by sandbox: they make it busy. */
void sp_workers_exec_begin(struct sp_workers *workers, const char *sandbox_id);
void sp_workers_exec_end(struct sp_workers *workers, const char *sandbox_id);
int64_t sp_workers_execs(struct sp_workers *workers, const char *sandbox_id);
