/* Between reconcile.c and action.c. */
#pragma once

#include "node/action.h"
#include "node/reconcile.h"

struct sp_action_pools *sp_reconciler_pools(struct sp_reconciler *reconciler);
