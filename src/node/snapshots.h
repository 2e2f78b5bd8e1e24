/*
 * Snapshots: what the server wants of them, and taking them (docs/lifecycle.md).
 *
 * Level-triggered: a snapshot is the saved form of its id. One that is there is ready; one that is
 * wanted and not there is taken as the action of its sandbox when nothing else is to be done for
 * that. One lock of its own; lock order: the table's, then this one, then an outbox's.
 */
#pragma once

#include <jansson.h>

#include "node/outbox.h"
#include "node/table.h"

struct sp_snapshots;

struct sp_snapshots *sp_snapshots_new(struct sp_node *node);
/* Waits for removals under way, at most timeout_ms; false: one still runs, and nothing may be
 * freed. */
bool sp_snapshots_stop(struct sp_snapshots *snapshots, int64_t timeout_ms);
void sp_snapshots_free(struct sp_snapshots *snapshots);

/* Takes in the rows of the desired list. After the rows of sandboxes of the same answer. Without
 * locks. */
void sp_snapshots_want(struct sp_snapshots *snapshots, json_t *rows);
/* Whether one of the sandbox waits to be taken. */
bool sp_snapshots_due(struct sp_snapshots *snapshots, const char *sandbox_id);
/* Those of the sandbox that wait can never be taken: reports so. */
void sp_snapshots_fail(struct sp_snapshots *snapshots, const char *sandbox_id, const char *reason);
/* Takes what is due, as the action of the sandbox. */
void sp_snapshots_serve(struct sp_snapshots *snapshots, struct sp_sandbox *sandbox);
/* Tries removals again that failed. */
void sp_snapshots_tick(struct sp_snapshots *snapshots);

/* Something is made from a snapshot: it is not removed meanwhile. False: it is not there, or is to
 * be removed (SP_ERROR_NOT_FOUND). */
bool sp_snapshots_hold(struct sp_snapshots *snapshots, const char *id, GError **error);
void sp_snapshots_release(struct sp_snapshots *snapshots, const char *id);

/* Saves a sandbox that is running, paused or suspended as a form called saved_name and leaves it as
 * it was (snapshot_take.c). */
struct sp_snapshot_taken {
    bool memory;
    int64_t size_bytes;
};
bool sp_snapshot_take(struct sp_sandbox *sandbox, const struct sp_save_spec *spec, json_t *steps,
                      struct sp_snapshot_taken *ret, GError **error);
