/* Which tier a sandbox gets, and on which node: pure rules. */
#pragma once

#include <glib.h>
#include <stdbool.h>

#include "model/sandbox.h"

/* One tier as a worker registered it. */
struct sp_tier {
    enum sp_isolation tier;
    bool available;
    bool probing; /* its trial has not ended: available is not known yet */
    char *detail; /* how it works, or why it does not: "kvm", "tcg", "cgroup v1 + v2 hybrid" */
};

/* The tier for a request. AUTO becomes microvm when the request is untrusted or the microvm tier
 * works with KVM (its detail begins with the word "kvm"), else container. *ret_reason is a constant
 * text. A tier that is still being tried counts as available: its worker waits for the trial and
 * knows best. SP_ERROR_UNSUPPORTED with the tier's own reason when the tier is not available. */
bool sp_isolation_choose(enum sp_isolation wanted, bool untrusted, const struct sp_tier *tiers,
                         unsigned n_tiers, enum sp_isolation *ret, const char **ret_reason,
                         GError **error);
