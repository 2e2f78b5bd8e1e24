/* Which node and tier a new sandbox gets. Pure: decides from the rows it is given. */
#pragma once

#include <glib.h>
#include <stdbool.h>

#include "model/isolation.h"
#include "store/store.h"

struct sp_placement {
    const struct sp_node_row *node; /* borrowed from nodes */
    enum sp_isolation isolation;
    const char *isolation_reason; /* constant */
};

/* A node is ready while its lease has not run out. */
bool sp_node_ready(const struct sp_node_row *node, int64_t now_ms);
/* The first ready node, by name; NULL: none. */
const struct sp_node_row *sp_place_any(GPtrArray *nodes, int64_t now_ms);
/* Among the ready nodes the first that offers the tier, those that have the template before the
 * others. SP_ERROR_UNAVAILABLE: no node is ready; SP_ERROR_UNSUPPORTED or a field error: why the
 * tier is not. */
bool sp_place(GPtrArray *nodes, int64_t now_ms, enum sp_isolation isolation, bool untrusted,
              const char *template_digest, struct sp_placement *ret, GError **error);
/* The node of that name: what starts from a snapshot is made where the snapshot is, in its tier.
 * SP_ERROR_UNAVAILABLE while the node is not ready. */
bool sp_place_on(GPtrArray *nodes, int64_t now_ms, const char *name, enum sp_isolation isolation,
                 struct sp_placement *ret, GError **error);
/* Whether the digest is in the node's list of templates. */
bool sp_node_has_template(const struct sp_node_row *node, const char *digest);
/* The tiers of a node as registered, struct sp_tier each. Free with g_array_unref(). */
GArray *sp_node_tiers(const struct sp_node_row *node);
