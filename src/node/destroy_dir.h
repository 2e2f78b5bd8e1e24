/* Run directories: of sandboxes (<state>/run/sandboxes/<id>), of members of pools
 * (<state>/run/pool/<name>). */
#pragma once

#include <glib.h>
#include <stdbool.h>

#include "node/node.h"

/* Removes everything that the record in the directory names, then the directory. Idempotent; true
 * when nothing is left. Blocks for what the driver's destroy() needs. */
bool sp_destroy_run_dir(struct sp_node *node, const char *run_dir, GError **error);
