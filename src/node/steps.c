#include "node/steps.h"

#include "base/time.h"

void sp_steps_add(void *steps, const char *name, int64_t duration_us)
{
    if (steps)
        json_array_append_new(
            steps, json_pack("{s:s,s:I}", "name", name, "duration_us", (json_int_t)duration_us));
}

void sp_steps_since(json_t *steps, const char *name, int64_t began_us)
{
    sp_steps_add(steps, name, sp_time_monotonic_us() - began_us);
}
