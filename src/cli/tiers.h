/* The tiers in an answer of GET /v1/nodes. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

/* Whether a worker is still trying one of its tiers out; available and detail of it say nothing
 * then. */
bool sp_tiers_still_tried(json_t *nodes);
/* Whether every tier of every node works. */
bool sp_tiers_all_work(json_t *nodes);
