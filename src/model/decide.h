/*
 * What a worker does next about one sandbox: a pure function of what is wanted and what is there.
 *
 * A change that fails (a pause, suspend, wake or rollback) leaves the sandbox as it was: the worker
 * reports the state it is in together with the error, and the server makes that state the desired
 * one, with a new generation. Snapshots are taken when nothing else is to be done (node/action.c).
 *
 * tests/unit/model/decide.c goes through every combination.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "model/sandbox.h"

/* What the worker finds on its node. */
enum sp_presence {
    SP_PRESENCE_ABSENT,  /* no run directory: nothing of it is here */
    SP_PRESENCE_PARTIAL, /* made half-way (a crash in create), nothing runs for it that may be kept
                          */
    SP_PRESENCE_RUNNING, /* its process lives and is ours */
    SP_PRESENCE_PAUSED,
    SP_PRESENCE_SUSPENDED,
    SP_PRESENCE_ENDED,   /* it ran, and its process is provably gone */
    SP_PRESENCE_UNKNOWN, /* cannot tell now (an error in looking) */
    SP_N_PRESENCES,
};

enum sp_action {
    SP_ACTION_NONE,
    SP_ACTION_CREATE,
    SP_ACTION_DESTROY,         /* remove everything; decide again afterwards */
    SP_ACTION_FAIL,            /* remove what is left and report failed: its memory is lost */
    SP_ACTION_REPORT_DELETED,  /* nothing is left: say so */
    SP_ACTION_REPORT_OBSERVED, /* it is as wanted, but the server has not heard so for this
                                  generation */
    SP_ACTION_LOOK_AGAIN,      /* later */
    SP_ACTION_UNSUPPORTED, /* the wanted change is not possible: report the operation as failed */
    SP_ACTION_PAUSE,
    SP_ACTION_RESUME,   /* from paused */
    SP_ACTION_SUSPEND,  /* from running or paused: save it durably, then release everything */
    SP_ACTION_WAKE,     /* from suspended */
    SP_ACTION_ROLLBACK, /* put a snapshot in its place, suspended; decide again afterwards */
    SP_N_ACTIONS,
};

struct sp_wanted {
    bool known; /* false: the server does not know the sandbox: it is left alone */
    enum sp_desired desired;
    int64_t generation;
    int64_t rollback_generation; /* of the last rollback that was asked for; 0: none */
};
struct sp_found {
    enum sp_presence presence;
    int64_t reported_generation; /* of the last report that the server has taken; 0: none */
    int64_t failed_generation;   /* generation whose change failed or which was lost; 0: none */
    int64_t rollback_generation; /* of the last rollback that was done; 0: none */
    bool was_running;            /* it has been reported running once */
};

enum sp_action sp_decide(const struct sp_wanted *wanted, const struct sp_found *found);
const char *sp_action_name(enum sp_action action);
