/* The plain values of a sandbox: states, tiers, resources, the request to make one. */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"

/* Observed. DELETING is shown while desired is deleted and the worker has not finished. */
enum sp_state {
    SP_STATE_CREATING,
    SP_STATE_RUNNING,
    SP_STATE_PAUSED,
    SP_STATE_SUSPENDED,
    SP_STATE_DELETING,
    SP_STATE_DELETED,
    SP_STATE_FAILED,
    SP_N_STATES,
};
enum sp_desired {
    SP_DESIRED_RUNNING,
    SP_DESIRED_PAUSED,
    SP_DESIRED_SUSPENDED,
    SP_DESIRED_DELETED,
    SP_N_DESIRED,
};
enum sp_isolation {
    SP_ISOLATION_AUTO,
    SP_ISOLATION_CONTAINER,
    SP_ISOLATION_GVISOR,
    SP_ISOLATION_MICROVM,
    SP_N_ISOLATIONS,
};

extern const char *const sp_state_names[SP_N_STATES + 1]; /* NULL-terminated, for SP_JSON_ENUM */
extern const char *const sp_desired_names[SP_N_DESIRED + 1];
extern const char *const sp_isolation_names[SP_N_ISOLATIONS + 1];
/* false when the name is unknown. */
bool sp_state_parse(const char *name, enum sp_state *ret);
bool sp_desired_parse(const char *name, enum sp_desired *ret);
bool sp_isolation_parse(const char *name, enum sp_isolation *ret);

struct sp_resources {
    double cpus;
    int64_t memory_mb;
    int64_t disk_mb;
    int64_t pids;
};

/* The body of POST /v1/sandboxes, checked. Owned members; clear with sp_sandbox_request_clear(). */
struct sp_sandbox_request {
    char *template_ref; /* "seed:latest" or "sha256:…" */
    char *name;         /* NULL: none */
    char *user;         /* default user of commands; NULL: the template's */
    char **env;         /* strv "K=V" */
    char **metadata;    /* strv "k=v" */
    char **network_allow;
    struct sp_resources resources;
    int isolation; /* enum sp_isolation */
    int on_idle;   /* index in sp_on_idle_names */
    bool untrusted;
    bool idle_timeout_set, max_lifetime_set;
    int64_t idle_timeout_ms, max_lifetime_ms;
};
extern const char *const sp_on_idle_names[]; /* suspend pause delete none */

/* Decodes and checks the body (unknown fields and values out of range name the field). Defaults: 1 CPU,
 * 512 MB memory, 2048 MB disk, 128 pids, isolation auto, template seed:latest. */
bool sp_sandbox_request_decode(json_t *body, struct sp_sandbox_request *ret, GError **error);
void sp_sandbox_request_clear(struct sp_sandbox_request *request);
