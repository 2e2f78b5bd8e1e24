/*
 * The changes of a sandbox that exists: each is the one action that runs for it, without the
 * table's lock (docs/lifecycle.md §2). Steps get {name, duration_us} objects; NULL is fine.
 *
 * On failure the sandbox is as it was, as far as that is possible; its presence says how it is. A
 * sandbox that the server wants gone is not put back: what is left of it is for the delete.
 */
#pragma once

#include "node/table.h"

bool sp_change_pause(struct sp_sandbox *sandbox, json_t *steps, GError **error);
bool sp_change_resume(struct sp_sandbox *sandbox, json_t *steps, GError **error);
/* Saves it durably, then lets go of everything. From running or paused. */
bool sp_change_suspend(struct sp_sandbox *sandbox, bool memory, json_t *steps, GError **error);
/* From suspended. */
bool sp_change_wake(struct sp_sandbox *sandbox, struct sp_sandbox_spec *spec, json_t *steps,
                    GError **error);
/* Puts a snapshot in its place, suspended. generation is recorded as done, also on failure: a
 * rollback that failed is not tried again. */
bool sp_change_rollback(struct sp_sandbox *sandbox, const char *snapshot_id, int64_t generation,
                        json_t *steps, GError **error);

/* Lets go of link and instance of a sandbox whose truth is its saved form by now, and removes what
 * they were. Running sessions go on later if kept, else they are lost. */
void sp_change_let_go(struct sp_sandbox *sandbox, bool kept, json_t *steps);
