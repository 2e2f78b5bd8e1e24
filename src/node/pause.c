/* Pause and resume: execution stops, memory stays. */
#include "base/failpoint.h"
#include "base/time.h"
#include "node/changes.h"
#include "node/standstill.h"
#include "node/steps.h"

bool sp_change_pause(struct sp_sandbox *sandbox, json_t *steps, GError **error)
{
    int64_t began = sp_time_monotonic_us();
    if (!sp_failpoint("pause.before", error) || !sp_still_begin(sandbox, SP_STILL_STAY, error))
        return false;
    sp_failpoint("pause.done", NULL);
    sp_steps_since(steps, "pause", began);
    return true;
}

bool sp_change_resume(struct sp_sandbox *sandbox, json_t *steps, GError **error)
{
    int64_t began = sp_time_monotonic_us();
    if (!sp_failpoint("resume.before", error) || !sp_still_end(sandbox, error))
        return false;
    sp_failpoint("resume.done", NULL);
    sp_steps_since(steps, "resume", began);
    return true;
}
