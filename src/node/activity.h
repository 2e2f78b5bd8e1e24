/* How busy the sandboxes are, told to the server every 5 s (docs/worker-protocol.md): clients that
 * are attached to their sessions, and their CPU use as the host counts it. */
#pragma once

#include "node/node.h"

struct sp_activity;

struct sp_activity *sp_activity_start(struct sp_node *node);
void sp_activity_stop(struct sp_activity *activity);
