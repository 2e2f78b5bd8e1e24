/*
 * Bringing about what the server wants: the long poll of the desired state, one action at a time
 * for each sandbox (model/decide.h), reports of what came of it.
 *
 * Creates run in a pool of their own, so that none waits behind a slow removal.
 */
#pragma once

#include <stdbool.h>

#include "node/table.h"

struct sp_reconciler;

struct sp_reconciler *sp_reconciler_new(struct sp_node *node);
/* Reads the run directories: takes over what runs. Before start(). Blocks for what the drivers
 * need. */
void sp_reconciler_scan(struct sp_reconciler *reconciler);
void sp_reconciler_start(struct sp_reconciler *reconciler);
/* Asks the threads to end and waits for them, and at most timeout_ms for actions under way. False:
 * an action still runs, and nothing may be freed. */
bool sp_reconciler_stop(struct sp_reconciler *reconciler, int64_t timeout_ms);
void sp_reconciler_free(struct sp_reconciler *reconciler);
/* Registers again soon: the tiers or the templates have changed. */
void sp_reconciler_heartbeat(struct sp_reconciler *reconciler);

/* The link saw the end of the sandbox's process; `sandbox` is a struct sp_sandbox. */
void sp_reconcile_on_gone(void *sandbox);
/* The report of the outbox was taken (struct sp_outbox_ops). */
void sp_reconcile_taken(void *node, const char *id, const json_t *report, bool taken);
