/* Choosing and running the next action of a sandbox. */
#pragma once

#include "node/table.h"

/* Pools that actions run in. */
struct sp_action_pools {
    GThreadPool *makers; /* creates and wakes */
    GThreadPool *savers; /* what writes much to the disk */
    GThreadPool *others;
    gint n_actions; /* atomic: queued and running */
};
bool sp_action_pools_init(struct sp_action_pools *pools);
/* Waits for running actions, at most timeout_ms; queued ones are dropped. False: some still run. */
bool sp_action_pools_stop(struct sp_action_pools *pools, int64_t timeout_ms);

/* Looks at what is wanted and found, and queues the action for it; reports are queued at once. The
 * table's lock is held. */
void sp_action_consider(struct sp_sandbox *sandbox);
