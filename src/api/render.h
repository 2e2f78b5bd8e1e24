/* Rows as the JSON of the API. */
#pragma once

#include <jansson.h>

#include "store/store.h"

/* live_execs: commands of POST …/exec that run now, which are no sessions in the store. */
json_t *sp_render_sandbox(const struct sp_sandbox_row *sandbox, int64_t live_execs, int64_t now_ms);
json_t *sp_render_snapshot(const struct sp_snapshot_row *snapshot);
json_t *sp_render_operation(const struct sp_operation_row *operation);
json_t *sp_render_session(const struct sp_session_row *session);
/* nodes: all, to tell the tiers that the template can be used in. */
json_t *sp_render_template(const struct sp_template_row *template, GPtrArray *nodes);
json_t *sp_render_node(const struct sp_node_row *node, int64_t now_ms);
/* A time; 0 becomes null. */
json_t *sp_render_time(int64_t realtime_ms);
/* The value of a JSON text of the store; null when it is NULL. */
json_t *sp_render_parsed(const char *text);
