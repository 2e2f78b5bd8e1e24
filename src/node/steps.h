/* The steps of an action, as they stand in the record of its operation. */
#pragma once

#include <jansson.h>
#include <stdint.h>

/* Appends {name, duration_us} to a JSON array; NULL: nobody wants to know. A sp_step_fn. */
void sp_steps_add(void *steps, const char *name, int64_t duration_us);
/* The same for what has begun at began_us (CLOCK_MONOTONIC). */
void sp_steps_since(json_t *steps, const char *name, int64_t began_us);
