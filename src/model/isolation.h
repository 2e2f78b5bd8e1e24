/* Which tier a sandbox gets, and on which node: pure rules. */
#pragma once

#include <glib.h>
#include <stdbool.h>

#include "model/sandbox.h"

/* One tier as a worker registered it. */
struct sp_tier {
    enum sp_isolation tier;
    bool available;
    bool probing;     /* its trial has not ended: available is not known yet */
    char *detail;     /* how it works, or why it does not: "kvm", "tcg", "cgroup v1 + v2 hybrid" */
    bool save_memory; /* suspend, snapshot and fork can keep the memory */
    char *save_memory_detail; /* why not, and what to do; may be NULL */
};
/* The tiers of a node from the JSON text that it registered, struct sp_tier each; what is malformed
 * or of a newer worker is left out. Free with g_array_unref(). */
GArray *sp_tiers_parse(const char *json);
/* Whether memory can be kept in that tier of a node. NULL: yes (a tier that is still being tried
 * may be asked: its worker knows). Else why not; free with g_free(). */
char *sp_tier_no_memory(const char *tiers_json, enum sp_isolation tier);
/* The error of a request for it: SP_ERROR_UNSUPPORTED about /memory, saying what to do. */
void sp_tier_set_no_memory_error(GError **error, enum sp_isolation tier, const char *why);

/* The tier for a request. AUTO becomes microvm when the request is untrusted or the microvm tier
 * works with KVM (its detail begins with the word "kvm"), else container. *ret_reason is a constant
 * text. A tier that is still being tried counts as available: its worker waits for the trial and
 * knows best. SP_ERROR_UNSUPPORTED with the tier's own reason when the tier is not available. */
bool sp_isolation_choose(enum sp_isolation wanted, bool untrusted, const struct sp_tier *tiers,
                         unsigned n_tiers, enum sp_isolation *ret, const char **ret_reason,
                         GError **error);
