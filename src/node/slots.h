/*
 * Which of the SP_SLOTS blocks of uids are in use (base/limits.h). The truth is in the records of
 * the run directories; this is what was read from them. Not thread-safe: the sandbox table's lock
 * guards it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"

struct sp_slots {
    uint64_t used[SP_SLOTS / 64];
    unsigned next; /* where the search goes on: a block comes back as late as possible */
    unsigned n_used;
};

/* A free slot, marked as used; -1 when all are taken. */
int sp_slots_take(struct sp_slots *slots);
/* Marks a slot of a record; false when it was marked before, or is none. */
bool sp_slots_claim(struct sp_slots *slots, unsigned slot);
/* Only after nothing with its uids is left on the host. A slot that is not used is no error. */
void sp_slots_release(struct sp_slots *slots, unsigned slot);
