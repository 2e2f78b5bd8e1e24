#include "model/decide.h"

/* It is as wanted: say so once for this generation. */
static enum sp_action settled(const struct sp_wanted *wanted, const struct sp_found *found)
{
    return found->reported_generation < wanted->generation ? SP_ACTION_REPORT_OBSERVED
                                                           : SP_ACTION_NONE;
}

static enum sp_action cannot(const struct sp_wanted *wanted, const struct sp_found *found)
{
    return found->reported_generation < wanted->generation ? SP_ACTION_UNSUPPORTED : SP_ACTION_NONE;
}

static enum sp_action decide_deleted(const struct sp_wanted *wanted, const struct sp_found *found)
{
    if (found->presence != SP_PRESENCE_ABSENT)
        return SP_ACTION_DESTROY;
    return found->reported_generation < wanted->generation ? SP_ACTION_REPORT_DELETED
                                                           : SP_ACTION_NONE;
}

/* Nothing of it that can be kept is here any more. */
static enum sp_action decide_gone(const struct sp_wanted *wanted, const struct sp_found *found)
{
    bool can_make = wanted->desired == SP_DESIRED_RUNNING;
    if (found->was_running)
        return SP_ACTION_FAIL;
    if (found->presence != SP_PRESENCE_ABSENT)
        return SP_ACTION_DESTROY;
    return can_make ? SP_ACTION_CREATE : cannot(wanted, found);
}

/* Failed for this very generation: it is not tried again, only cleaned up and reported. */
static enum sp_action decide_failed(const struct sp_wanted *wanted, const struct sp_found *found)
{
    switch (found->presence) {
    case SP_PRESENCE_PARTIAL:
        return SP_ACTION_DESTROY;
    case SP_PRESENCE_RUNNING: /* a failed create never leaves a sandbox that was ready */
        return found->was_running ? settled(wanted, found) : SP_ACTION_DESTROY;
    case SP_PRESENCE_ENDED: /* lost after the change had failed */
        return found->was_running ? SP_ACTION_FAIL : SP_ACTION_DESTROY;
    default: /* a failed change of a paused or suspended one leaves it as it is */
        return settled(wanted, found);
    }
}

static enum sp_presence presence_wanted(enum sp_desired desired)
{
    switch (desired) {
    case SP_DESIRED_PAUSED:
        return SP_PRESENCE_PAUSED;
    case SP_DESIRED_SUSPENDED:
        return SP_PRESENCE_SUSPENDED;
    default:
        return SP_PRESENCE_RUNNING;
    }
}

/* It is here and whole, in another state than the wanted one. */
static enum sp_action change(const struct sp_wanted *wanted, const struct sp_found *found)
{
    switch (wanted->desired) {
    case SP_DESIRED_RUNNING:
        return found->presence == SP_PRESENCE_PAUSED ? SP_ACTION_RESUME : SP_ACTION_WAKE;
    case SP_DESIRED_SUSPENDED:
        return SP_ACTION_SUSPEND;
    default: /* paused: memory that is on the disk is not paused, it is woken first */
        return found->presence == SP_PRESENCE_RUNNING ? SP_ACTION_PAUSE : cannot(wanted, found);
    }
}

enum sp_action sp_decide(const struct sp_wanted *wanted, const struct sp_found *found)
{
    if (!wanted->known)
        return SP_ACTION_NONE;
    if (found->presence == SP_PRESENCE_UNKNOWN)
        return SP_ACTION_LOOK_AGAIN;
    if (wanted->desired == SP_DESIRED_DELETED)
        return decide_deleted(wanted, found);
    if (found->failed_generation == wanted->generation)
        return decide_failed(wanted, found);

    switch (found->presence) {
    case SP_PRESENCE_ABSENT:
    case SP_PRESENCE_PARTIAL:
    case SP_PRESENCE_ENDED:
        return decide_gone(wanted, found);
    default:
        break;
    }
    if (wanted->rollback_generation > found->rollback_generation)
        return SP_ACTION_ROLLBACK;
    if (found->presence == presence_wanted(wanted->desired))
        return settled(wanted, found);
    return change(wanted, found);
}

const char *sp_action_name(enum sp_action action)
{
    switch (action) {
    case SP_ACTION_NONE:
        return "none";
    case SP_ACTION_CREATE:
        return "create";
    case SP_ACTION_DESTROY:
        return "destroy";
    case SP_ACTION_FAIL:
        return "fail";
    case SP_ACTION_REPORT_DELETED:
        return "report_deleted";
    case SP_ACTION_REPORT_OBSERVED:
        return "report_observed";
    case SP_ACTION_LOOK_AGAIN:
        return "look_again";
    case SP_ACTION_UNSUPPORTED:
        return "unsupported";
    case SP_ACTION_PAUSE:
        return "pause";
    case SP_ACTION_RESUME:
        return "resume";
    case SP_ACTION_SUSPEND:
        return "suspend";
    case SP_ACTION_WAKE:
        return "wake";
    case SP_ACTION_ROLLBACK:
        return "rollback";
    case SP_N_ACTIONS:
        break;
    }
    return "?";
}
