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
    " (SELECT COUNT(*) FROM sessions x WHERE x.sandbox_id = s.id AND x.state = 'running')"         \
    " FROM sandboxes s "
struct sp_sandbox_row *sp_sandbox_row_read(struct sp_db_rows *rows);
/* NULL without an error: no such row. Deleted ones are found too. */
bool sp_tx_sandbox(struct sp_db_tx *tx, const char *id, struct sp_sandbox_row **ret,
                   GError **error);
/* All rows of a query that begins with SP_SANDBOX_SELECT; frees rows, which may be NULL (an error).
 */
GPtrArray *sp_sandbox_rows_read(struct sp_db_rows *rows, GError **error);

/* Desired deleted with a fresh operation, see sp_store_sandbox_delete(). */
bool sp_tx_sandbox_delete(struct sp_db_tx *tx, const struct sp_sandbox_row *sandbox,
                          const char *reason, char ret_operation_id[SP_ID_MAX], GError **error);

struct sp_operation_new {
    const char *tenant, *sandbox_id, *build_id, *template_ref;
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
