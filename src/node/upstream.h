/* The requests of the worker to the server (docs/worker-protocol.md). All block. */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>

#include "node/node.h"

/* Register and heartbeat. The server's answer {lease_ms, deleted_templates}; caller owns. */
json_t *sp_upstream_register(struct sp_node *node, GError **error);
/* The long poll: changed rows after a revision; ends at once when the worker stops. Caller owns. */
json_t *sp_upstream_desired(struct sp_node *node, int64_t after, int wait_ms, GError **error);
/* What the server knows of these ids: {"sandboxes":[…]}. Caller owns. */
json_t *sp_upstream_desired_of(struct sp_node *node, char *const *ids, GError **error);
/* Reports; the list's reference is not taken. */
bool sp_upstream_observed(struct sp_node *node, json_t *sandboxes, GError **error);
bool sp_upstream_sessions(struct sp_node *node, json_t *sessions, GError **error);
bool sp_upstream_snapshots(struct sp_node *node, json_t *snapshots, GError **error);
bool sp_upstream_activity(struct sp_node *node, json_t *sandboxes, GError **error);
/* Spec and tokens of a session. Caller owns. SP_ERROR_NOT_FOUND. */
json_t *sp_upstream_session(struct sp_node *node, const char *session_id, GError **error);
/* Report about a build; *ret_cancel: the server does not want it any more. body is not taken. */
bool sp_upstream_build(struct sp_node *node, const char *build_id, json_t *body, bool *ret_cancel,
                       GError **error);
