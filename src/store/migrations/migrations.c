#include "store/migrations/migrations.h"

#include <stddef.h>

/* Times are milliseconds since the epoch, 0 for "not yet". JSON is kept as text. Words (state,
 * kind, …) are those of the API. */
static const char *const initial[] = {
    /* revision: counts the transactions that change what a worker must see */
    "CREATE TABLE counters (name TEXT PRIMARY KEY, value BIGINT NOT NULL)",
    "INSERT INTO counters (name, value) VALUES ('revision', 0)",

    "CREATE TABLE api_keys ("
    " id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, role TEXT NOT NULL,"
    " hash TEXT NOT NULL UNIQUE, created_at BIGINT NOT NULL, revoked_at BIGINT NOT NULL DEFAULT 0)",

    "CREATE TABLE nodes ("
    " name TEXT PRIMARY KEY, instance TEXT NOT NULL, data_url TEXT NOT NULL, tiers TEXT NOT NULL,"
    " templates TEXT NOT NULL, registered_at BIGINT NOT NULL, lease_expires_at BIGINT NOT NULL)",

    "CREATE TABLE sandboxes ("
    " id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT, node TEXT NOT NULL,"
    " state TEXT NOT NULL, desired_state TEXT NOT NULL, state_reason TEXT,"
    " generation BIGINT NOT NULL, revision BIGINT NOT NULL, operation_id TEXT NOT NULL,"
    " template TEXT NOT NULL, template_digest TEXT NOT NULL,"
    " isolation TEXT NOT NULL, isolation_reason TEXT NOT NULL,"
    " cpus_milli BIGINT NOT NULL, memory_mb BIGINT NOT NULL, disk_mb BIGINT NOT NULL,"
    " pids BIGINT NOT NULL, user_name TEXT, env TEXT NOT NULL, metadata TEXT NOT NULL,"
    " network TEXT NOT NULL, idle_timeout_ms BIGINT NOT NULL, on_idle TEXT NOT NULL,"
    " max_lifetime_ms BIGINT NOT NULL, parent_snapshot_id TEXT,"
    " created_at BIGINT NOT NULL, started_at BIGINT NOT NULL DEFAULT 0,"
    " last_active_at BIGINT NOT NULL, deleted_at BIGINT NOT NULL DEFAULT 0)",
    "CREATE INDEX sandboxes_tenant ON sandboxes (tenant, id)",
    "CREATE INDEX sandboxes_node ON sandboxes (node, revision)",
    "CREATE INDEX sandboxes_digest ON sandboxes (template_digest, state)",
    "CREATE INDEX sandboxes_state ON sandboxes (state)",
    "CREATE TABLE sandbox_metadata ("
    " sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,"
    " name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (sandbox_id, name))",
    "CREATE INDEX sandbox_metadata_value ON sandbox_metadata (name, value)",

    "CREATE TABLE operations ("
    " id TEXT PRIMARY KEY, tenant TEXT NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL,"
    " sandbox_id TEXT, build_id TEXT, template TEXT, generation BIGINT NOT NULL DEFAULT 0,"
    " error_code TEXT, error_message TEXT, steps TEXT NOT NULL DEFAULT '[]',"
    " created_at BIGINT NOT NULL, started_at BIGINT NOT NULL DEFAULT 0,"
    " finished_at BIGINT NOT NULL DEFAULT 0)",
    "CREATE INDEX operations_tenant ON operations (tenant, id)",
    "CREATE INDEX operations_sandbox ON operations (sandbox_id, id)",
    "CREATE INDEX operations_state ON operations (state)",

    "CREATE TABLE idempotency ("
    " key_id TEXT NOT NULL, idem_key TEXT NOT NULL, request_hash TEXT NOT NULL,"
    " resource_id TEXT NOT NULL, operation_id TEXT NOT NULL, created_at BIGINT NOT NULL,"
    " PRIMARY KEY (key_id, idem_key))",
    "CREATE INDEX idempotency_created ON idempotency (created_at)",

    "CREATE TABLE sessions ("
    " id TEXT PRIMARY KEY, tenant TEXT NOT NULL,"
    " sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,"
    " process_id TEXT NOT NULL, spec TEXT NOT NULL, state TEXT NOT NULL,"
    " exit_status TEXT, error TEXT, created_at BIGINT NOT NULL,"
    " started_at BIGINT NOT NULL DEFAULT 0, ended_at BIGINT NOT NULL DEFAULT 0)",
    "CREATE INDEX sessions_sandbox ON sessions (sandbox_id, state)",
    "CREATE TABLE session_tokens ("
    " hash TEXT PRIMARY KEY,"
    " session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,"
    " expires_at BIGINT NOT NULL)",
    "CREATE INDEX session_tokens_session ON session_tokens (session_id)",
    "CREATE INDEX session_tokens_expiry ON session_tokens (expires_at)",

    "CREATE TABLE template_images ("
    " digest TEXT PRIMARY KEY, size_bytes BIGINT NOT NULL, config TEXT NOT NULL,"
    " created_at BIGINT NOT NULL)",
    "CREATE TABLE template_tags ("
    " ref TEXT PRIMARY KEY, name TEXT NOT NULL, tag TEXT NOT NULL,"
    " digest TEXT NOT NULL REFERENCES template_images (digest), created_at BIGINT NOT NULL)",
    "CREATE INDEX template_tags_digest ON template_tags (digest)",
    "CREATE TABLE builds ("
    " id TEXT PRIMARY KEY, node TEXT NOT NULL, ref TEXT NOT NULL, name TEXT NOT NULL,"
    " tag TEXT NOT NULL, recipe TEXT NOT NULL, no_cache BIGINT NOT NULL, operation_id TEXT NOT "
    "NULL, state TEXT NOT NULL,"
    " digest TEXT, log TEXT NOT NULL DEFAULT '', revision BIGINT NOT NULL,"
    " created_at BIGINT NOT NULL, finished_at BIGINT NOT NULL DEFAULT 0)",
    "CREATE INDEX builds_node ON builds (node, revision)",
    "CREATE INDEX builds_ref ON builds (ref, id)",
    "CREATE INDEX builds_digest ON builds (digest)",
    NULL,
};

/* Pause, suspend, wake, snapshots, forks, rollback; what the workers say about activity and pools.
 * attached and cpu_milli (thousandths of a percent of a core): -1 is "not known". */
static const char *const lifecycle[] = {
    "ALTER TABLE sandboxes ADD COLUMN suspend_memory BIGINT NOT NULL DEFAULT 1",
    "ALTER TABLE sandboxes ADD COLUMN saved_from TEXT",
    "ALTER TABLE sandboxes ADD COLUMN fork_snapshot_id TEXT",
    "ALTER TABLE sandboxes ADD COLUMN head_snapshot_id TEXT",
    "ALTER TABLE sandboxes ADD COLUMN rollback_snapshot_id TEXT",
    "ALTER TABLE sandboxes ADD COLUMN rollback_generation BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE sandboxes ADD COLUMN attached BIGINT NOT NULL DEFAULT -1",
    "ALTER TABLE sandboxes ADD COLUMN cpu_milli BIGINT NOT NULL DEFAULT -1",
    "ALTER TABLE sandboxes ADD COLUMN activity_at BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE sandboxes ADD COLUMN idle_not_before BIGINT NOT NULL DEFAULT 0",
    "CREATE INDEX sandboxes_saved_from ON sandboxes (saved_from)",
    "CREATE INDEX sandboxes_fork ON sandboxes (fork_snapshot_id, id)",

    "ALTER TABLE operations ADD COLUMN snapshot_id TEXT",
    "CREATE INDEX operations_snapshot ON operations (snapshot_id)",
    "ALTER TABLE nodes ADD COLUMN pools TEXT NOT NULL DEFAULT '[]'",

    /* wanted: ready, deleted. durable 0: a fork's own, which no user sees. operation_id: of its
     * making; a fork's has none. deleted_at: when its node had nothing of it any more. */
    "CREATE TABLE snapshots ("
    " id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT, sandbox_id TEXT NOT NULL,"
    " parent_id TEXT, node TEXT NOT NULL, memory BIGINT NOT NULL, durable BIGINT NOT NULL,"
    " state TEXT NOT NULL, wanted TEXT NOT NULL, revision BIGINT NOT NULL, operation_id TEXT,"
    " delete_operation_id TEXT, isolation TEXT NOT NULL, template TEXT NOT NULL,"
    " template_digest TEXT NOT NULL, cpus_milli BIGINT NOT NULL, memory_mb BIGINT NOT NULL,"
    " disk_mb BIGINT NOT NULL, pids BIGINT NOT NULL, user_name TEXT, env TEXT NOT NULL,"
    " size_bytes BIGINT NOT NULL DEFAULT 0, error_code TEXT, error_message TEXT,"
    " created_at BIGINT NOT NULL, ready_at BIGINT NOT NULL DEFAULT 0,"
    " deleted_at BIGINT NOT NULL DEFAULT 0)",
    "CREATE INDEX snapshots_tenant ON snapshots (tenant, id)",
    "CREATE INDEX snapshots_node ON snapshots (node, revision)",
    "CREATE INDEX snapshots_sandbox ON snapshots (sandbox_id, state)",
    "CREATE INDEX snapshots_durable ON snapshots (durable, state)",
    "CREATE INDEX snapshots_parent ON snapshots (parent_id)",
    "CREATE INDEX snapshots_digest ON snapshots (template_digest, deleted_at)",
    NULL,
};

/* Which server does what only one may do (leases.c). */
static const char *const leases[] = {
    "CREATE TABLE leases ("
    " name TEXT PRIMARY KEY, holder TEXT NOT NULL, expires_at BIGINT NOT NULL)",
    NULL,
};

/* Lists, what a worker hears, what is looked at while nobody asks (sweep.c): none of it takes
 * longer the more rows of the past there are. */
static const char *const upkeep[] = {
    "DROP INDEX sandboxes_tenant",
    "CREATE INDEX sandboxes_live ON sandboxes (tenant, id) WHERE state <> 'deleted'",
    "DROP INDEX sandboxes_node",
    "CREATE INDEX sandboxes_wanted ON sandboxes (node, revision) WHERE state <> 'deleted'",
    "CREATE INDEX sandboxes_gone ON sandboxes (deleted_at) WHERE deleted_at > 0",
    "CREATE INDEX sandboxes_lifetime ON sandboxes (created_at)"
    " WHERE max_lifetime_ms > 0 AND desired_state <> 'deleted'",
    "CREATE INDEX sandboxes_parent ON sandboxes (parent_snapshot_id)"
    " WHERE parent_snapshot_id IS NOT NULL",
    "CREATE INDEX sandboxes_head ON sandboxes (head_snapshot_id)"
    " WHERE head_snapshot_id IS NOT NULL",
    "CREATE INDEX sandboxes_rollback ON sandboxes (rollback_snapshot_id)"
    " WHERE rollback_snapshot_id IS NOT NULL",
    "CREATE INDEX operations_finished ON operations (finished_at) WHERE finished_at > 0",
    "CREATE INDEX sessions_ended ON sessions (ended_at) WHERE ended_at > 0",
    "CREATE INDEX sessions_pending ON sessions (created_at) WHERE state = 'pending'",
    "CREATE INDEX snapshots_gone ON snapshots (deleted_at) WHERE deleted_at > 0",
    NULL,
};

const struct sp_migration sp_migrations[] = {
    {1, initial}, {2, lifecycle}, {3, leases}, {4, upkeep}, {0, NULL},
};
