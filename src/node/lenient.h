/* Reading objects of the worker protocol, whose unknown fields are ignored
 * (docs/worker-protocol.md). */
#pragma once

#include "base/json.h"

/* sp_json_decode() that passes over fields which the table does not name. */
bool sp_node_decode(json_t *object, const struct sp_json_field *table, void *out, GError **error);
