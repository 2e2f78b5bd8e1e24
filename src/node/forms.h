/* Saved forms (disk/saved.h) as the worker's actions need them. */
#pragma once

#include "node/table.h"

/* Whether the sandbox's tier can save it this way; SP_ERROR_UNSUPPORTED says why not, and what to
 * do. */
bool sp_forms_check_tier(struct sp_driver *driver, bool memory, GError **error);
/* Makes a form disappear, and what drivers keep in memory for it. True when there is none. */
bool sp_forms_remove(struct sp_node *node, const char *name, GError **error);
/* Removes what is left of an instance beside the sandbox's truth: by its record, then in the run
 * directory (docs/lifecycle.md: suspended). Idempotent. */
bool sp_forms_remove_instance(struct sp_sandbox *sandbox, GError **error);
