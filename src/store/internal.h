/* Between the files of the store: the struct, and steps inside a transaction that several share. */
#pragma once

#include "store/db.h"
#include "store/store.h"

struct sp_changes;

struct sp_store {
    struct sp_db *db;
    struct sp_changes *changes;
    char holder[SP_ID_MAX]; /* of leases: this process */
};

struct sp_changes *sp_changes_new(void);
void sp_changes_free(struct sp_changes *changes);
/* A topic was published here or by another server; NULL: perhaps any. user is the struct
 * sp_changes. */
void sp_changes_heard(const char *topic, void *user);

/* SP_ERROR_FAILED_PRECONDITION when another process holds the lease: whoever acts by virtue of a
 * lease asks in the same transaction, as it may have been stopped for a while since it got it. */
bool sp_tx_lease_check(struct sp_store *store, struct sp_db_tx *tx, const char *name,
                       GError **error);

/* The next revision, written to the counter. */
bool sp_tx_bump_revision(struct sp_db_tx *tx, int64_t *ret, GError **error);

/* Looks the key up; *ret.found false when there is none (or idem has no key). */
bool sp_tx_replay_find(struct sp_db_tx *tx, const struct sp_idempotency *idem,
                       struct sp_replay *ret, GError **error);
bool sp_tx_replay_record(struct sp_db_tx *tx, const struct sp_idempotency *idem,
                         const char *resource_id, const char *operation_id, GError **error);

/* A row of sandboxes with every column; the statement begins with SP_SANDBOX_SELECT. */
#define SP_SANDBOX_SELECT                                                                          \
    "SELECT s.id, s.tenant, s.name, s.node, s.state, s.desired_state, s.state_reason,"             \
    " s.generation, s.revision, s.operation_id, s.template, s.template_digest, s.isolation,"       \
    " s.isolation_reason, s.cpus_milli, s.memory_mb, s.disk_mb, s.pids, s.user_name, s.env,"       \
    " s.metadata, s.network, s.idle_timeout_ms, s.on_idle, s.max_lifetime_ms,"                     \
    " s.parent_snapshot_id, s.created_at, s.started_at, s.last_active_at, s.deleted_at,"           \
    " s.suspend_memory, s.saved_from, s.head_snapshot_id, s.rollback_snapshot_id,"                 \
    " s.rollback_generation, s.attached, s.cpu_milli, s.activity_at,"                              \
    " (SELECT COUNT(*) FROM sessions x WHERE x.sandbox_id = s.id AND x.state = 'running')"         \
    " FROM sandboxes s "
struct sp_sandbox_row *sp_sandbox_row_read(struct sp_db_rows *rows);
/* NULL without an error: no such row. Deleted ones are found too. */
bool sp_tx_sandbox(struct sp_db_tx *tx, const char *id, struct sp_sandbox_row **ret,
                   GError **error);
/* All rows of a query that begins with SP_SANDBOX_SELECT; frees rows, which may be NULL (an error).
 */
GPtrArray *sp_sandbox_rows_read(struct sp_db_rows *rows, GError **error);

/* The number in the first column of the only row. */
bool sp_tx_count(struct sp_db_tx *tx, const char *sql, const char *id, int64_t *ret,
                 GError **error);

/* --- topics: what is published once a transaction is committed; a GPtrArray of owned strings */
GPtrArray *sp_topics_new(void);
void sp_topics_add(GPtrArray *topics, const char *topic);
void sp_topics_add_node(GPtrArray *topics, const char *node);
void sp_topics_publish(struct sp_store *store, GPtrArray *topics);

/* Not found: it is not there, finally deleted, or of another tenant (NULL: any). */
bool sp_tx_sandbox_live(struct sp_db_tx *tx, const char *tenant, const char *id,
                        struct sp_sandbox_row **ret, GError **error);
/* It is used now. */
bool sp_tx_sandbox_touch(struct sp_db_tx *tx, const char *id, GError **error);
/* A row for each sandbox of a fork or create; id, operation and revision are set by the caller. */
struct sp_sandbox_insert {
    const char *id, *operation_id, *tenant, *node;
    int64_t revision;
    const char *name, *template_ref, *template_digest, *isolation_reason, *user;
    const char *env, *metadata, *network; /* JSON */
    enum sp_isolation isolation;
    const struct sp_resources *resources;
    int64_t idle_timeout_ms, max_lifetime_ms;
    int on_idle;
    const char *parent_snapshot_id, *saved_from, *fork_snapshot_id; /* NULL: none */
};
bool sp_tx_sandbox_insert(struct sp_db_tx *tx, const struct sp_sandbox_insert *row, GError **error);

/* Desired deleted with a fresh operation, see sp_store_sandbox_delete(). */
bool sp_tx_sandbox_delete(struct sp_db_tx *tx, const struct sp_sandbox_row *sandbox,
                          const char *reason, char ret_operation_id[SP_ID_MAX], GPtrArray *topics,
                          GError **error);

/* --- transition.c */
/* What sp_change_decide() asks about the sandbox. ret_operation_id: what is under way, or the
 * snapshot's operation, "" when there is none. */
bool sp_tx_change_facts(struct sp_db_tx *tx, const struct sp_sandbox_row *sandbox,
                        struct sp_change_facts *ret, char ret_operation_id[SP_ID_MAX],
                        GError **error);
/* Whether a snapshot may be taken for the change (SNAPSHOT or FORK): else the error says why not.
 * memory: whether the request wants it kept. *ret_memory: whether it will be; a suspended sandbox
 * has its memory on the disk, or has none. */
bool sp_tx_check_save(struct sp_db_tx *tx, const struct sp_sandbox_row *sandbox,
                      enum sp_change change, bool memory, bool *ret_memory, GError **error);
/* Writes a change that is allowed. reason becomes state_reason (NULL: none). */
bool sp_tx_change(struct sp_db_tx *tx, const struct sp_sandbox_row *sandbox,
                  const struct sp_change_new *change, const char *reason,
                  char ret_operation_id[SP_ID_MAX], GPtrArray *topics, GError **error);
/* The change under way has failed: the state seen becomes the desired one, in a new generation. */
bool sp_tx_change_failed(struct sp_db_tx *tx, const struct sp_sandbox_row *sandbox,
                         enum sp_state seen, const char *reason, GPtrArray *topics, GError **error);
/* Whether the sandbox's tier can keep memory on its node: *ret_why is NULL, else says why not (the
 * caller frees). */
bool sp_tx_no_memory(struct sp_db_tx *tx, const struct sp_sandbox_row *sandbox, char **ret_why,
                     GError **error);
/* Backing off after a change of the idle rule that failed. */
#define SP_IDLE_RETRY_MS (10 * 60 * (int64_t)1000)
#define SP_IDLE_REASON "idle_timeout is over"
#define SP_IDLE_PAUSED "paused instead of suspended: "

/* --- snapshots.c, snapshot_reports.c */
#define SP_SNAPSHOT_SELECT                                                                         \
    "SELECT n.id, n.tenant, n.name, n.sandbox_id, n.parent_id, n.node, n.operation_id,"            \
    " n.delete_operation_id, n.template, n.template_digest, n.user_name, n.env, n.error_code,"     \
    " n.error_message, n.state, n.isolation, n.cpus_milli, n.memory_mb, n.disk_mb, n.pids,"        \
    " n.memory, n.durable, n.wanted, n.revision, n.size_bytes, n.created_at, n.ready_at,"          \
    " n.deleted_at FROM snapshots n "
/* All rows of a query that begins with SP_SNAPSHOT_SELECT; frees rows, which may be NULL. */
GPtrArray *sp_snapshot_rows_read(struct sp_db_rows *rows, GError **error);
/* NULL without an error: no such row. */
bool sp_tx_snapshot(struct sp_db_tx *tx, const char *id, struct sp_snapshot_row **ret,
                    GError **error);
struct sp_snapshot_insert {
    const char *id, *name, *operation_id;
    bool memory, durable;
    int64_t revision;
};
/* In state creating, of the sandbox as its row is. */
bool sp_tx_snapshot_insert(struct sp_db_tx *tx, const struct sp_sandbox_row *of,
                           const struct sp_snapshot_insert *row, GError **error);
/* It cannot be taken any more: it fails, and with it the sandboxes that wait for it; its node
 * removes what there may be of it. */
bool sp_tx_snapshot_fail(struct sp_db_tx *tx, const struct sp_snapshot_row *snapshot,
                         const char *code, const char *why, GPtrArray *topics, GError **error);
/* The same for all that are being taken of a sandbox. */
bool sp_tx_snapshots_abandon(struct sp_db_tx *tx, const char *sandbox_id, const char *code,
                             const char *why, GPtrArray *topics, GError **error);
/* Forks' snapshots that no child needs any more are to be removed. */
bool sp_tx_snapshots_release(struct sp_db_tx *tx, GPtrArray *topics, GError **error);
/* The sandbox has failed: its operation ends so, its sessions are lost. */
bool sp_tx_sandbox_fail(struct sp_db_tx *tx, const struct sp_sandbox_row *sandbox, const char *code,
                        const char *why, const char *reason, const char *steps, GPtrArray *topics,
                        GError **error);

/* --- the parts of sp_store_sweep() */
bool sp_sweep_overdue(struct sp_db_tx *tx, int64_t now_ms, GPtrArray *topics, int64_t *ret_n,
                      GError **error);
bool sp_sweep_idle(struct sp_db_tx *tx, int64_t now_ms, GPtrArray *topics, int64_t *ret_n,
                   GError **error);
/* When one of them has something to do; G_MAXINT64: never. */
bool sp_sweep_overdue_next(struct sp_db_tx *tx, int64_t *ret_at_ms, GError **error);
bool sp_sweep_idle_next(struct sp_db_tx *tx, int64_t now_ms, int64_t *ret_at_ms, GError **error);
/* The first column of all rows of a query with the one parameter $1; NULL on failure. */
GPtrArray *sp_tx_ids(struct sp_db_tx *tx, GError **error, const char *sql, int64_t value);

struct sp_operation_new {
    const char *tenant, *sandbox_id, *build_id, *template_ref, *snapshot_id;
    enum sp_operation_kind kind;
    int64_t generation;
};
bool sp_tx_operation_insert(struct sp_db_tx *tx, const struct sp_operation_new *op,
                            char ret_id[SP_ID_MAX], GError **error);
/* Ends an operation that has not ended; error_code NULL: it succeeded. steps may be NULL. */
bool sp_tx_operation_end(struct sp_db_tx *tx, const char *id, const char *error_code,
                         const char *error_message, const char *steps, GError **error);

/* Sessions of the sandbox that have not ended are lost; their tokens go. */
bool sp_tx_sessions_lost(struct sp_db_tx *tx, const char *sandbox_id, GError **error);
/* Ends a build and its operation. */
bool sp_tx_build_fail(struct sp_db_tx *tx, const char *build_id, const char *operation_id,
                      const char *error_code, const char *error_message, GError **error);
