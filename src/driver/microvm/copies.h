/*
 * The whole RAM of saved forms that copies are made from, by the directory of the form: kept so
 * that each next copy finds it made. What lives of its copies keeps its own reference, so dropping
 * one here costs the next copy time, nothing else.
 *
 * No sandbox pays for this memory, and anybody can make snapshots. So all of it together is kept
 * below a share of what the host can spare: those that were used longest ago go first.
 */
#pragma once

#include "driver/microvm/private.h"
#include "driver/microvm/ram.h"

/* Made empty with the driver. */
GHashTable *sp_copies_new(void);
/* Takes a reference of its own. max_bytes: of all that are kept; the one given is kept in any case.
 */
void sp_copies_keep(struct sp_microvm *vm, const char *saved_dir, struct sp_ram *ram,
                    int64_t max_bytes);
void sp_copies_forget(struct sp_microvm *vm, const char *saved_dir);
/* What the host can spare for them now, bytes: an eighth of the memory that would be free without
 * them. */
int64_t sp_copies_budget(struct sp_microvm *vm);
