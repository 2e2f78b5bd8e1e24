/* The handlers of the route table, by the file that holds them. */
#pragma once

#include "api/api.h"

/* health.c */
bool sp_api_healthz(struct sp_api_call *call, GError **error);
bool sp_api_readyz(struct sp_api_call *call, GError **error);
bool sp_api_version(struct sp_api_call *call, GError **error);
bool sp_api_metrics(struct sp_api_call *call, GError **error);
bool sp_api_node_list(struct sp_api_call *call, GError **error);
/* sandboxes.c */
bool sp_api_sandbox_create(struct sp_api_call *call, GError **error);
bool sp_api_sandbox_list(struct sp_api_call *call, GError **error);
bool sp_api_sandbox_get(struct sp_api_call *call, GError **error);
bool sp_api_sandbox_patch(struct sp_api_call *call, GError **error);
bool sp_api_sandbox_delete(struct sp_api_call *call, GError **error);
/* lifecycle.c */
bool sp_api_sandbox_pause(struct sp_api_call *call, GError **error);
bool sp_api_sandbox_suspend(struct sp_api_call *call, GError **error);
bool sp_api_sandbox_wake(struct sp_api_call *call, GError **error);
bool sp_api_sandbox_rollback(struct sp_api_call *call, GError **error);
bool sp_api_sandbox_fork(struct sp_api_call *call, GError **error);
/* snapshots.c */
bool sp_api_snapshot_create(struct sp_api_call *call, GError **error);
bool sp_api_snapshot_list(struct sp_api_call *call, GError **error);
bool sp_api_snapshot_get(struct sp_api_call *call, GError **error);
bool sp_api_snapshot_delete(struct sp_api_call *call, GError **error);
/* operations.c */
bool sp_api_operation_get(struct sp_api_call *call, GError **error);
bool sp_api_operation_list(struct sp_api_call *call, GError **error);
/* sessions.c */
bool sp_api_session_create(struct sp_api_call *call, GError **error);
bool sp_api_session_get(struct sp_api_call *call, GError **error);
bool sp_api_session_attachment(struct sp_api_call *call, GError **error);
/* processes.c */
bool sp_api_process_list(struct sp_api_call *call, GError **error);
bool sp_api_process_signal(struct sp_api_call *call, GError **error);
/* exec.c */
bool sp_api_exec(struct sp_api_call *call, GError **error);
/* templates.c */
bool sp_api_template_build(struct sp_api_call *call, GError **error);
bool sp_api_template_list(struct sp_api_call *call, GError **error);
bool sp_api_template_get(struct sp_api_call *call, GError **error);
bool sp_api_template_log(struct sp_api_call *call, GError **error);
bool sp_api_template_delete(struct sp_api_call *call, GError **error);
/* worker_wanted.c, worker_reports.c, worker_lifecycle.c: docs/worker-protocol.md */
bool sp_api_worker_register(struct sp_api_call *call, GError **error);
bool sp_api_worker_desired(struct sp_api_call *call, GError **error);
bool sp_api_worker_desired_of(struct sp_api_call *call, GError **error);
bool sp_api_worker_session_get(struct sp_api_call *call, GError **error);
bool sp_api_worker_observed(struct sp_api_call *call, GError **error);
bool sp_api_worker_sessions(struct sp_api_call *call, GError **error);
bool sp_api_worker_snapshots(struct sp_api_call *call, GError **error);
bool sp_api_worker_activity(struct sp_api_call *call, GError **error);
bool sp_api_worker_build(struct sp_api_call *call, GError **error);
