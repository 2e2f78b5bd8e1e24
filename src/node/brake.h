/*
 * The brake of a worker's start: it found sandboxes on its node and is about to remove some without
 * the server having asked for that. A few are normal (a crash); most of them is more likely a
 * mistake of ours, and what is removed does not come back. While the brake holds they are left
 * alone.
 *
 * Not thread-safe: the sandbox table's lock guards it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define SP_BRAKE_MIN 5u        /* so many may go in any case */
#define SP_BRAKE_HOLD_MS 60000 /* then everything has been looked at again, and it lets go */

struct sp_brake {
    unsigned found;     /* sandboxes found at start */
    unsigned removed;   /* of these, removed without an order */
    int64_t release_ms; /* monotonic; set when it first holds */
    bool holding;
};

/* Whether a sandbox that was found at start may be removed without an order; counts it if so. */
bool sp_brake_allows(struct sp_brake *brake, int64_t now_ms);
