/*
 * Removing templates that the server says are deleted (docs/worker-protocol.md, register), while no
 * sandbox of this node and no build needs them.
 */
#pragma once

#include <jansson.h>

#include "node/node.h"

/* digests: the server's list, may be NULL; what is not on this node is passed over. builds_started
 * is what sp_builds_started() said before the server was asked. Returns at once, the work is done
 * in a thread that sp_builds_stop() waits for; what cannot be removed now is for the next call. */
void sp_template_drop(struct sp_node *node, json_t *digests, unsigned builds_started);
