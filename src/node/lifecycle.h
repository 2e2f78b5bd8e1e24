/*
 * The slow steps of one sandbox: making it, removing it, taking it over after a restart. Each is
 * called by the one action that runs for the sandbox, without the table's lock.
 */
#pragma once

#include "node/table.h"

/* Makes the sandbox and returns when it has answered a real exec. steps gets {name, duration_us}
 * objects. On failure nothing is left, or (logged) what could not be removed: the presence says
 * which. */
bool sp_bring_up(struct sp_sandbox *sandbox, struct sp_sandbox_spec *spec, json_t *steps,
                 GError **error);

/* Removes everything of it: link, processes, disk, run directory, slot. Streams get reason as their
 * last word. Idempotent. */
bool sp_take_down(struct sp_sandbox *sandbox, const char *reason, GError **error);

/* Finds out what is there of a sandbox that an earlier worker made, and takes it over if it runs.
 * Sets the presence; SP_PRESENCE_UNKNOWN with an error when it cannot be told now. */
bool sp_adopt(struct sp_sandbox *sandbox, GError **error);

/* Starts the link for an instance that runs. */
struct sp_link *sp_lifecycle_link(struct sp_sandbox *sandbox, struct sp_driver *driver,
                                  struct sp_instance *instance, GError **error);
