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

enum sp_on_idle {
    SP_ON_IDLE_SUSPEND,
    SP_ON_IDLE_PAUSE,
    SP_ON_IDLE_DELETE,
    SP_ON_IDLE_NONE,
    SP_N_ON_IDLE,
};
extern const char *const sp_on_idle_names[SP_N_ON_IDLE + 1];

/* The body of POST /v1/sandboxes, checked. Owned members; clear with sp_sandbox_request_clear(). */
struct sp_sandbox_request {
    char *template_ref;            /* "seed:latest" or "sha256:…" */
    char *name;                    /* NULL: none. A label: it need not be unique */
    char *user;                    /* default user of commands; NULL: the template's */
    char **env;                    /* strv "K=V" */
    char **metadata;               /* strv "k=v" */
    char **network_allow;          /* empty: a list with hosts is refused as unsupported for now */
    struct sp_resources resources; /* cpus in whole thousandths */
    char *snapshot_id; /* to start from, of the right form; NULL: the template. It brings its own
                        * template, tier and resources: those here are then without meaning */
    int isolation;     /* enum sp_isolation */
    int on_idle;       /* enum sp_on_idle */
    bool untrusted, deny_private;
    bool template_set, isolation_set, untrusted_set, resources_set;
    bool idle_timeout_set, max_lifetime_set;
    int64_t idle_timeout_ms, max_lifetime_ms; /* max_lifetime_ms 0: none */
};

/* Decodes and checks the body (unknown fields and values out of range name the field). Defaults: 1
 * CPU, 512 MB memory, 2048 MB disk, 128 pids, isolation auto, template seed:latest, idle timeout 6
 * h. With snapshot_id, what the snapshot decides (template, isolation, untrusted, resources) may
 * not be given too. What is right but not there yet (network.allow with hosts) is
 * SP_ERROR_UNSUPPORTED.
 */
bool sp_sandbox_request_decode(json_t *body, struct sp_sandbox_request *ret, GError **error);
void sp_sandbox_request_clear(struct sp_sandbox_request *request);

/* The body of PATCH /v1/sandboxes/{id}: what is absent or null stays as it is. metadata and
 * network replace what was there. */
struct sp_sandbox_patch {
    char *name;
    char **metadata;
    char **network_allow;
    bool deny_private; /* default true */
    bool network_set, on_idle_set, idle_timeout_set, max_lifetime_set;
    int on_idle;
    int64_t idle_timeout_ms, max_lifetime_ms;
};
bool sp_sandbox_patch_decode(json_t *body, struct sp_sandbox_patch *ret, GError **error);
void sp_sandbox_patch_clear(struct sp_sandbox_patch *patch);

/* Checks shared with the session request. at is the JSON pointer that an error names ("/env"). */
bool sp_check_env(char *const *env, const char *at, GError **error);
bool sp_check_user(const char *user, const char *at, GError **error);
/* A label: [a-z0-9][a-z0-9-]{0,62}; NULL is fine. */
bool sp_check_name(const char *name, const char *at, GError **error);
