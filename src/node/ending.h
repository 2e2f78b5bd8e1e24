/* Why a sandbox has ended by itself. */
#pragma once

#include "node/table.h"

/* A sentence for people, and for state_reason. Before the sandbox is taken down: it looks at its
 * control group. Free with g_free(). */
char *sp_ending_reason(const struct sp_sandbox *sandbox);
