#include "node/observe.h"

#include "base/json.h"
#include "base/time.h"

json_t *sp_observe_state(const struct sp_sandbox *sandbox, int64_t generation, enum sp_state state,
                         const char *reason, const char *code, const char *message, json_t *steps)
{
    json_t *report = json_pack("{s:s,s:I,s:s}", "id", sandbox->id, "generation",
                               (json_int_t)generation, "state", sp_state_names[state]);
    if (reason)
        json_object_set_new(report, "reason", sp_json_text(reason));
    if (code) {
        json_t *error = json_object();
        json_object_set_new(error, "code", sp_json_text(code));
        json_object_set_new(error, "message", sp_json_text(message ? message : ""));
        json_object_set_new(report, "error", error);
    }
    if (steps)
        json_object_set(report, "steps", steps);
    return report;
}

json_t *sp_observe(const struct sp_sandbox *sandbox, int64_t generation)
{
    switch (sandbox->found.presence) {
    case SP_PRESENCE_RUNNING:
        return sp_observe_state(sandbox, generation, SP_STATE_RUNNING, NULL, NULL, NULL, NULL);
    case SP_PRESENCE_PAUSED:
        return sp_observe_state(sandbox, generation, SP_STATE_PAUSED, NULL, NULL, NULL, NULL);
    case SP_PRESENCE_SUSPENDED:
        return sp_observe_state(sandbox, generation, SP_STATE_SUSPENDED, NULL, NULL, NULL, NULL);
    default:
        return sp_observe_state(
            sandbox, generation, SP_STATE_FAILED, sandbox->fail_message,
            sandbox->fail_code ? sandbox->fail_code : "unavailable",
            sandbox->fail_message ? sandbox->fail_message : "the sandbox is gone", NULL);
    }
}

json_t *sp_observe_steps(const struct sp_sandbox *sandbox, int64_t generation, json_t *steps)
{
    json_t *report = sp_observe(sandbox, generation);
    json_object_set(report, "steps", steps);
    return report;
}

json_t *sp_observe_failed(const struct sp_sandbox *sandbox, int64_t generation, json_t *steps)
{
    json_t *report = sp_observe_steps(sandbox, generation, steps);
    json_t *error = json_object();
    json_object_set_new(error, "code", sp_json_text(sandbox->fail_code));
    json_object_set_new(error, "message", sp_json_text(sandbox->fail_message));
    json_object_set_new(report, "error", error);
    return report;
}
