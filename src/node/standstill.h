/*
 * Bringing a running sandbox to a standstill, and letting it go on: the frame of pause, suspend and
 * snapshot (docs/lifecycle.md §2). For the one action that runs for the sandbox.
 *
 * The file "held" in the run directory is there before the first process stands still and until the
 * last one goes on, so that a restarted worker never takes a sandbox whose processes are frozen
 * inside for one that runs. The presence is PAUSED as long as it stands still.
 */
#pragma once

#include "node/table.h"

enum sp_still {
    SP_STILL_STAY = 0,
    SP_STILL_BRIEF =
        1, /* it is to go on when the action is over, also after a crash of the worker */
    SP_STILL_SYNC = 2, /* what its processes have written is to be on its disk */
};

/* On failure it runs as before, or (the presence says so) stands still and cannot be made to go on.
 */
bool sp_still_begin(struct sp_sandbox *sandbox, unsigned flags, GError **error);
/* Lets it go on. On failure it stands still. */
bool sp_still_end(struct sp_sandbox *sandbox, GError **error);
/* For one that stands still already, without SP_STILL_SYNC: only the agent runs for a moment. */
bool sp_still_sync(struct sp_sandbox *sandbox, GError **error);
/* Whether the action that stopped it was to let it go on. */
bool sp_still_is_brief(struct sp_sandbox *sandbox);
