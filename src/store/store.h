/*
 * The control plane's state: what the API and the controllers do with the database, as whole
 * transactions. Callers see no SQL; another back end changes nothing here.
 *
 * All functions are thread-safe and may block for some milliseconds (an fsync). A row that is
 * absent, or belongs to another tenant, is SP_ERROR_NOT_FOUND. tenant NULL means any. Times are
 * milliseconds since the epoch, 0 for "not yet"; JSON members are texts of it. Returned rows are
 * owned by the caller.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/ids.h"
#include "model/change.h"
#include "model/operation.h"
#include "model/sandbox.h"
#include "model/session.h"
#include "model/template.h"

struct sp_store;

/* Opens, makes or migrates the database: a file's path or a URL of PostgreSQL (where.h). Refuses
 * one of a newer version. */
struct sp_store *sp_store_open(const char *where, GError **error);
void sp_store_close(struct sp_store *store);

/* --- change notification (changes.c). A topic is an operation's id, SP_TOPIC_CONTROLLER, or
 * sp_store_node_topic(). Take a ticket, read the rows, and if they are not as wanted, wait: it
 * returns at once when something was published after the ticket was taken. It only shortens the
 * wait; wake-ups without a change happen, so re-read. */
#define SP_TOPIC_CONTROLLER "controller"
uint64_t sp_store_ticket(struct sp_store *store, const char *topic);
void sp_store_wait(struct sp_store *store, const char *topic, uint64_t ticket,
                   int64_t deadline_monotonic_ms);
void sp_store_publish(struct sp_store *store, const char *topic);
/* All waiters return; later waits return at once too (the process is stopping). */
void sp_store_wake_all(struct sp_store *store);
/* "node:local"; caller frees. */
char *sp_store_node_topic(const char *node);

/* --- leases (leases.c): of several servers on one database, one at a time does what the lease's
 * name says. The database's clock decides. */
#define SP_LEASE_CONTROLLER "controller"
/* Whether there can be other servers: else nobody needs a lease. */
bool sp_store_shared(const struct sp_store *store);
/* Takes the lease for ttl_ms when it is free or has run out, renews it when it is ours already.
 * *ret_held: whether it is ours now. Count ttl_ms from before the call. */
bool sp_store_lease_take(struct sp_store *store, const char *name, int64_t ttl_ms, bool *ret_held,
                         GError **error);
/* Gives it back, if it is ours; failing only means that it runs out by itself. */
void sp_store_lease_release(struct sp_store *store, const char *name);

/* --- keys (keys.c) */
struct sp_key_row {
    char *id, *tenant, *name, *role;
};
void sp_key_row_free(struct sp_key_row *key);
/* Makes the installation's admin key (id "key_admin", tenant "default") be the one with this hash.
 */
bool sp_store_key_set_admin(struct sp_store *store, const char *hash, GError **error);
/* The key that is not revoked and has this hash; SP_ERROR_UNAUTHENTICATED otherwise. */
struct sp_key_row *sp_store_key_find(struct sp_store *store, const char *hash, GError **error);

/* --- idempotency (idempotency.c). Every mutation takes one; key NULL means that the client sent
 * none. */
struct sp_idempotency {
    const char *key_id;
    const char *key;
    char hash[SP_HASH_HEX];
};
struct sp_replay {
    bool found;
    char resource_id[SP_ID_MAX];
    char operation_id[SP_ID_MAX];
};
/* What an earlier request with the same key made. SP_ERROR_IDEMPOTENCY_CONFLICT when that was
 * another request. */
bool sp_store_replay_find(struct sp_store *store, const struct sp_idempotency *idem,
                          struct sp_replay *ret, GError **error);
/* Records the key for a request that makes no row of its own (an exec, a signal), before it is
 * done. *ret_replay.found tells that it was there. */
bool sp_store_replay_claim(struct sp_store *store, const struct sp_idempotency *idem,
                           struct sp_replay *ret_replay, GError **error);
/* Takes the claim back, as the request was certainly not carried out. */
void sp_store_replay_release(struct sp_store *store, const struct sp_idempotency *idem);

/* --- sandboxes (sandboxes.c, lifecycle.c) */
struct sp_sandbox_row {
    char *id, *tenant, *name, *node, *state_reason, *operation_id;
    char *template_ref, *template_digest, *isolation_reason, *user, *parent_snapshot_id;
    char *saved_from;           /* snapshot that it is being made from, until it runs; NULL: none */
    char *head_snapshot_id;     /* durable snapshot that it has come from last; NULL: none */
    char *rollback_snapshot_id; /* of the last rollback; NULL: none */
    char *env, *metadata, *network; /* JSON */
    enum sp_state state;
    enum sp_desired desired;
    enum sp_isolation isolation;
    int on_idle;
    bool suspend_memory; /* of the wanted, or last, suspend */
    int64_t generation, revision;
    int64_t rollback_generation; /* 0: none */
    struct sp_resources resources;
    int64_t idle_timeout_ms, max_lifetime_ms;
    int64_t created_at_ms, started_at_ms, last_active_at_ms, deleted_at_ms;
    int64_t live_sessions; /* command sessions in state running */
    /* As its worker said last; -1: not known. cpu_milli: thousandths of a percent of one core. */
    int64_t attached, cpu_milli;
    int64_t activity_at_ms; /* when it said so */
};
void sp_sandbox_row_free(struct sp_sandbox_row *sandbox);

struct sp_snapshot_row;
struct sp_sandbox_new {
    const char *tenant;
    const struct sp_sandbox_request *request;
    const char *node, *template_digest, *isolation_reason;
    enum sp_isolation isolation;
    /* To start from, NULL: the template. Template, tier, resources and what the request does not
     * say of user and environment are the snapshot's then. */
    const struct sp_snapshot_row *snapshot;
};
/* Writes sandbox, operation and idempotency record in one transaction, or finds the earlier ones.
 * With a snapshot that is not ready any more: SP_ERROR_FAILED_PRECONDITION. */
bool sp_store_sandbox_create(struct sp_store *store, const struct sp_sandbox_new *sandbox,
                             const struct sp_idempotency *idem, struct sp_replay *ret,
                             GError **error);
/* Finally deleted ones are not found. */
struct sp_sandbox_row *sp_store_sandbox_get(struct sp_store *store, const char *tenant,
                                            const char *id, GError **error);
/* The same, but finds a finally deleted one until it is purged. */
struct sp_sandbox_row *sp_store_sandbox_get_any(struct sp_store *store, const char *tenant,
                                                const char *id, GError **error);
/* SP_ERROR_FAILED_PRECONDITION: what needs a running sandbox; it says what to do. */
void sp_sandbox_set_not_running(GError **error, enum sp_state state);
#define SP_MAX_METADATA_FILTERS 8
struct sp_sandbox_filter {
    const char *tenant;
    const char *state;        /* NULL: all but deleted */
    const char *template_ref; /* as given at create, or a digest */
    const char *metadata_keys[SP_MAX_METADATA_FILTERS], *metadata_values[SP_MAX_METADATA_FILTERS];
    unsigned n_metadata;
    const char *before_id; /* the page begins below it; NULL: at the newest */
    unsigned limit;
};
/* Of struct sp_sandbox_row, newest first. */
GPtrArray *sp_store_sandbox_list(struct sp_store *store, const struct sp_sandbox_filter *filter,
                                 GError **error);
bool sp_store_sandbox_patch(struct sp_store *store, const char *tenant, const char *id,
                            const struct sp_sandbox_patch *patch, const struct sp_idempotency *idem,
                            GError **error);
/* Desired state deleted, with an operation; ends every other operation of the sandbox. Repeated:
 * the same operation (also after it has ended well, until the row is purged). */
bool sp_store_sandbox_delete(struct sp_store *store, const char *tenant, const char *id,
                             const char *reason, const struct sp_idempotency *idem,
                             char ret_operation_id[SP_ID_MAX], GError **error);
/* Notes that the sandbox was used; writes at most every few seconds. seen is the row as read. */
void sp_store_sandbox_touch(struct sp_store *store, const struct sp_sandbox_row *seen);
/* Number of sandboxes in each state that are not deleted: fills SP_N_STATES numbers. */
bool sp_store_sandbox_counts(struct sp_store *store, int64_t *ret_counts, GError **error);

/* --- pause, suspend, wake, rollback (transition.c); the rules are in model/change.h */
struct sp_change_new {
    enum sp_change change;   /* PAUSE, SUSPEND, WAKE or ROLLBACK */
    bool memory;             /* SUSPEND: keep it */
    const char *snapshot_id; /* ROLLBACK */
};
/* Writes the desired state and an operation, or finds the operation that answers (a repetition, or
 * nothing is to be done). SP_ERROR_CONFLICT: names the operation under way. SP_ERROR_FAILED_
 * PRECONDITION: names the state. SP_ERROR_UNSUPPORTED about /memory: not in its tier. About
 * /snapshot_id: there is none of this sandbox. */
bool sp_store_sandbox_change(struct sp_store *store, const char *tenant, const char *id,
                             const struct sp_change_new *change, const struct sp_idempotency *idem,
                             char ret_operation_id[SP_ID_MAX], GError **error);

/* --- snapshots (snapshots.c, snapshot_reports.c) and forks (fork.c) */
enum sp_snapshot_state {
    SP_SNAPSHOT_CREATING,
    SP_SNAPSHOT_READY,
    SP_SNAPSHOT_FAILED,
    SP_SNAPSHOT_DELETING,
    SP_SNAPSHOT_DELETED,
    SP_N_SNAPSHOT_STATES,
};
extern const char *const sp_snapshot_state_names[SP_N_SNAPSHOT_STATES + 1];
struct sp_snapshot_row {
    char *id, *tenant, *name, *sandbox_id, *parent_id, *node;
    char *operation_id, *delete_operation_id; /* NULL: none */
    char *template_ref, *template_digest, *user;
    char *env; /* JSON; secrets may be in it */
    char *error_code, *error_message;
    enum sp_snapshot_state state;
    enum sp_isolation isolation;
    struct sp_resources resources;
    bool memory, durable;
    bool wanted; /* false: nothing of it is to stay */
    int64_t revision, size_bytes;
    int64_t created_at_ms, ready_at_ms, deleted_at_ms;
};
void sp_snapshot_row_free(struct sp_snapshot_row *snapshot);
/* A snapshot of the sandbox as it is now, with its operation; it is ready when its worker says so.
 * Errors as of sp_store_sandbox_change(). */
bool sp_store_snapshot_create(struct sp_store *store, const char *tenant, const char *sandbox_id,
                              const struct sp_snapshot_request *request,
                              const struct sp_idempotency *idem, struct sp_replay *ret,
                              GError **error);
/* Those that are deleted, or of a fork, are not found; a failed one is, for a day. */
struct sp_snapshot_row *sp_store_snapshot_get(struct sp_store *store, const char *tenant,
                                              const char *id, GError **error);
struct sp_snapshot_filter {
    const char *tenant, *sandbox_id, *before_id; /* sandbox_id NULL: of all */
    unsigned limit;
};
/* Of struct sp_snapshot_row, newest first: those that are being made, ready or being deleted. */
GPtrArray *sp_store_snapshot_list(struct sp_store *store, const struct sp_snapshot_filter *filter,
                                  GError **error);
/* SP_ERROR_CONFLICT while a sandbox is being made from it or rolled back to it. One that is being
 * taken is given up. Repeated: the same operation, as with sandboxes. What came from it comes from
 * its parent then. */
bool sp_store_snapshot_delete(struct sp_store *store, const char *tenant, const char *id,
                              const struct sp_idempotency *idem, char ret_operation_id[SP_ID_MAX],
                              GError **error);
/* Number of durable snapshots in each state: fills SP_N_SNAPSHOT_STATES numbers. */
bool sp_store_snapshot_counts(struct sp_store *store, int64_t *ret_counts, GError **error);
struct sp_snapshot_report {
    const char *id;
    enum sp_snapshot_state state; /* READY, FAILED or DELETED */
    bool memory_set, memory;
    int64_t size_bytes;
    const char *error_code, *error_message; /* NULL: none */
    const char *steps;                      /* JSON array or NULL */
};
/* Applies reports that fit. */
bool sp_store_snapshot_report(struct sp_store *store, const char *node,
                              const struct sp_snapshot_report *reports, unsigned n, GError **error);

struct sp_fork_child {
    char sandbox_id[SP_ID_MAX], operation_id[SP_ID_MAX];
};
/* Children, their operations and the snapshot that they are made from, in one transaction.
 * *ret_children: struct sp_fork_child each; an earlier request's when it is repeated. */
bool sp_store_sandbox_fork(struct sp_store *store, const char *tenant, const char *id,
                           const struct sp_fork_request *request, const struct sp_idempotency *idem,
                           GArray **ret_children, GError **error);

/* --- activity (activity.c) */
struct sp_activity {
    const char *id;
    int64_t attached, cpu_milli;
};
/* Above it a sandbox is in use: 5 % of a core. */
#define SP_BUSY_CPU_MILLI 5000
/* What a worker said of running sandboxes; one that is in use counts as used now. */
bool sp_store_activity(struct sp_store *store, const char *node, const struct sp_activity *items,
                       unsigned n, GError **error);
/* How long a worker's word about activity counts, when it does not repeat it. */
#define SP_ACTIVITY_STALE_MS 60000

/* --- operations (operations.c) */
struct sp_operation_row {
    char *id, *tenant, *sandbox_id, *build_id, *template_ref, *snapshot_id;
    char *error_code, *error_message;
    char *steps; /* JSON, as the worker sent it */
    enum sp_operation_kind kind;
    enum sp_operation_state state;
    int64_t generation, created_at_ms, started_at_ms, finished_at_ms;
};
void sp_operation_row_free(struct sp_operation_row *operation);
struct sp_operation_row *sp_store_operation_get(struct sp_store *store, const char *tenant,
                                                const char *id, GError **error);
struct sp_operation_filter {
    const char *tenant, *sandbox_id, *state, *kind, *before_id;
    unsigned limit;
};
GPtrArray *sp_store_operation_list(struct sp_store *store, const struct sp_operation_filter *filter,
                                   GError **error);

/* --- command sessions (sessions.c) */
struct sp_session_row {
    char *id, *tenant, *sandbox_id, *process_id;
    char *spec, *exit, *error; /* JSON */
    enum sp_session_state state;
    int64_t created_at_ms, started_at_ms, ended_at_ms;
};
struct sp_session_token {
    char hash[SP_HASH_HEX];
    int64_t expires_at_ms;
};
void sp_session_row_free(struct sp_session_row *session);
struct sp_session_new {
    const char *tenant, *sandbox_id;
    const char *spec; /* JSON */
    struct sp_session_token token;
};
/* SP_ERROR_FAILED_PRECONDITION, saying the state, when the sandbox is not running. A repeated
 * request gets the earlier session and the new token for it. */
bool sp_store_session_create(struct sp_store *store, const struct sp_session_new *session,
                             const struct sp_idempotency *idem, struct sp_replay *ret,
                             GError **error);
struct sp_session_row *sp_store_session_get(struct sp_store *store, const char *tenant,
                                            const char *id, GError **error);
bool sp_store_session_add_token(struct sp_store *store, const char *tenant, const char *id,
                                const struct sp_session_token *token, GError **error);
/* For the worker: not found when the sandbox is to be deleted. *ret_tokens is an array of struct
 * sp_session_token that have not expired. */
struct sp_session_row *sp_store_session_for_worker(struct sp_store *store, const char *id,
                                                   GArray **ret_tokens, GError **error);
struct sp_session_report {
    const char *id;
    enum sp_session_state state;
    int64_t started_at_ms, ended_at_ms; /* 0: not said */
    const char *exit, *error;           /* JSON or NULL */
};
/* An ended session stays as it ended. node NULL: not checked. */
bool sp_store_session_report(struct sp_store *store, const char *node,
                             const struct sp_session_report *reports, unsigned n_reports,
                             GError **error);

/* --- nodes (nodes.c) */
struct sp_node_row {
    char *name, *instance, *data_url;
    char *tiers, *templates; /* JSON arrays as registered */
    char *pools;             /* the same; NULL counts as [] */
    int64_t registered_at_ms, lease_expires_at_ms;
};
void sp_node_row_free(struct sp_node_row *node);
/* Takes the node's word and renews its lease. A new instance fails the builds that ran on the old
 * one. */
bool sp_store_node_register(struct sp_store *store, const struct sp_node_row *node, GError **error);
GPtrArray *sp_store_node_list(struct sp_store *store, GError **error);
struct sp_node_row *sp_store_node_get(struct sp_store *store, const char *name, GError **error);

/* --- what a worker is to do, and what it has seen (desired.c, observed.c) */
struct sp_build_row {
    char *id, *node, *ref, *name, *tag, *operation_id, *digest;
    char *recipe, *log; /* JSON; text */
    bool no_cache;
    enum sp_operation_state state; /* of the build */
    int64_t created_at_ms, finished_at_ms;
};
void sp_build_row_free(struct sp_build_row *build);
struct sp_desired_set {
    int64_t revision;
    GPtrArray *sandboxes; /* of struct sp_sandbox_row */
    GPtrArray *builds;    /* of struct sp_build_row, unfinished */
    GPtrArray *snapshots; /* of struct sp_snapshot_row, to be taken or to be removed */
};
void sp_desired_set_clear(struct sp_desired_set *set);
/* Rows of the node changed after the revision; 0: all that are not finally deleted. A sandbox that
 * waits for its snapshot is not among them; its revision is raised when the snapshot is ready. */
bool sp_store_desired(struct sp_store *store, const char *node, int64_t after,
                      struct sp_desired_set *ret, GError **error);
/* The rows of these ids, deleted ones too; what is not in the answer is unknown. */
GPtrArray *sp_store_desired_of(struct sp_store *store, const char *node, char *const *ids,
                               GError **error);
/* What the worker is told: a failed sandbox is not wanted any more, so that nothing of it stays. */
enum sp_desired sp_sandbox_wire_desired(const struct sp_sandbox_row *sandbox);

struct sp_observation {
    const char *id;
    int64_t generation;
    enum sp_state state;
    const char *reason;
    /* With a state running, paused or suspended: the wanted change has failed, and it is so. */
    const char *error_code, *error_message; /* NULL: none */
    const char *steps;                      /* JSON array or NULL */
    int64_t started_at_ms;                  /* 0: now */
};
/* Applies reports that fit; the others are ignored without an error (see docs/worker-protocol.md).
 */
bool sp_store_observe(struct sp_store *store, const char *node,
                      const struct sp_observation *observations, unsigned n, GError **error);

/* --- templates and builds (templates.c, builds.c) */
struct sp_template_row {
    char *name, *tag, *digest;
    char *config; /* JSON */
    int64_t size_bytes, created_at_ms;
};
void sp_template_row_free(struct sp_template_row *template);
/* By "name:tag" or digest (then name and tag are one of its names, or NULL). */
struct sp_template_row *sp_store_template_get(struct sp_store *store,
                                              const struct sp_template_ref *ref, GError **error);
/* Of struct sp_template_row in the order of their names; after_ref: "name:tag" or NULL. */
GPtrArray *sp_store_template_list(struct sp_store *store, const char *after_ref, unsigned limit,
                                  GError **error);
/* Takes the name away; the image too when it was its last name (by digest: all names). Refused with
 * SP_ERROR_FAILED_PRECONDITION when sandboxes that are not deleted use an image that would go. */
bool sp_store_template_delete(struct sp_store *store, const struct sp_template_ref *ref,
                              const struct sp_idempotency *idem, GError **error);
/* Those of the digests ("sha256:…") whose template was built here and has been deleted since: of no
 * use to any sandbox that is not deleted, nor to a build under way. A digest that was never heard
 * of is not deleted. Free with g_strfreev(). */
char **sp_store_templates_deleted(struct sp_store *store, char *const *digests, GError **error);
/* Build and operation in one transaction. ret->resource_id is the build's id. */
bool sp_store_build_create(struct sp_store *store, const char *tenant, const char *node,
                           const struct sp_template_request *request,
                           const struct sp_idempotency *idem, struct sp_replay *ret,
                           GError **error);
/* The newest build that made or would make this template. */
struct sp_build_row *sp_store_build_find(struct sp_store *store, const struct sp_template_ref *ref,
                                         GError **error);
struct sp_build_report {
    enum sp_operation_state state;
    const char *log; /* to append, or NULL */
    const char *digest, *config, *error_code, *error_message;
    int64_t size_bytes;
};
/* *ret_cancel: the build is not wanted (it has ended for the server). */
bool sp_store_build_report(struct sp_store *store, const char *id,
                           const struct sp_build_report *report, bool *ret_cancel, GError **error);

/* --- housekeeping (sweep.c) */
struct sp_sweep_result {
    int64_t next_at_ms;    /* when something may be due again */
    int64_t timed_out;     /* operations */
    int64_t expired, idle; /* sandboxes deleted at the end of max_lifetime; on_idle carried out */
    int64_t purged;        /* rows */
};
/* Refused with SP_ERROR_FAILED_PRECONDITION while another server holds SP_LEASE_CONTROLLER.
 * Ends operations that are overdue, deletes sandboxes whose max_lifetime is over, carries out
 * on_idle for those whose idle time is over (idle.c), removes forks' snapshots that no child needs,
 * forgets idempotency records after 24 h and deleted rows 24 h after their end.
 */
bool sp_store_sweep(struct sp_store *store, int64_t now_ms, struct sp_sweep_result *ret,
                    GError **error);
