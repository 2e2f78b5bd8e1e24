/* What `space doctor` finds out about this machine by itself, one row a check. */
#pragma once

#include <glib.h>
#include <stdbool.h>

#include "base/json.h"

/* What fails without it. */
enum sp_need {
    SP_NEED_ALL,       /* nothing works */
    SP_NEED_CONTAINER, /* the container tier does not */
    SP_NEED_MICROVM,   /* the microvm tier does not */
    SP_NEED_BUILD,     /* templates cannot be built */
    SP_NEED_BETTER,    /* everything works, but slower or with less */
};

struct sp_check_context {
    const char *state_dir; /* absolute; need not exist */
};

struct sp_check {
    const char *name;
    enum sp_need need;
    /* Whether it is well; *ret_detail gets what was found, or what is missing (owned by the
     * caller). Blocks for some seconds at most. */
    bool (*run)(const struct sp_check_context *context, char **ret_detail);
};
/* Ended by a row with a NULL name. */
extern const struct sp_check sp_checks[];

/* "everything", "the container tier", …: what needs it. */
const char *sp_need_text(enum sp_need need);
/* {"name","ok","needed_for","detail"} of one check. */
json_t *sp_check_run(const struct sp_check *check, const struct sp_check_context *context);
