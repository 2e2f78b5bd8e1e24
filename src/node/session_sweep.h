/* Looks after sessions that nobody reads: their end is to be reported all the same. */
#pragma once

#include "node/node.h"

struct sp_session_sweep;

struct sp_session_sweep *sp_session_sweep_start(struct sp_node *node);
void sp_session_sweep_stop(struct sp_session_sweep *sweep);
