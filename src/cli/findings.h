/*
 * What is inconsistent in an installation: a pure function of what inspect.h has found.
 *
 * A finding can be mended only with positive evidence: the server says that the sandbox is deleted,
 * or no record names the thing; and nothing uses it; and no daemon runs that could be making it
 * just now, or it is older than SP_FINDING_AGE_MS. *Unknown is not deleted*: saved forms and run
 * directories that the server has never heard of are shown and left.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>

#include "cli/inspect.h"

#define SP_FINDING_AGE_MS (10 * 60 * INT64_C(1000))
/* A save may take half an hour (docs/lifecycle.md). */
#define SP_FINDING_TMP_AGE_MS (60 * 60 * INT64_C(1000))

struct sp_finding {
    const char *kind; /* constant: "layer", …, "sandbox row", "snapshot row", "two owners" */
    char *name;
    char *what;                   /* what is wrong with it */
    char *hint;                   /* why it is not mended, or what to do; NULL: it can be mended */
    const struct sp_thing *thing; /* borrowed from the facts; NULL: nothing on this host */
    bool mended;
};

/* Array of struct sp_finding (run directories are added to the facts as things), in the order in
 * which they are to be mended; unref it before the facts are freed. */
GPtrArray *sp_findings_of(struct sp_facts *facts);
