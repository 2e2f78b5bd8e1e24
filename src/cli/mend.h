/* Puts right what findings.h found and allows. */
#pragma once

#include <glib.h>
#include <stdbool.h>

#include "cli/findings.h"

/* Mends every finding without a hint; those that cannot be mended get one that says why. True when
 * every finding is mended. Blocks for some seconds a finding at most. */
bool sp_mend_all(const struct sp_facts *facts, GPtrArray *findings);
