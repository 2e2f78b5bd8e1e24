#include "control/placement.h"

#include <string.h>

#include "base/error.h"
#include "base/json.h"

bool sp_node_ready(const struct sp_node_row *node, int64_t now_ms)
{
    return node->lease_expires_at_ms > now_ms;
}

const struct sp_node_row *sp_place_any(GPtrArray *nodes, int64_t now_ms)
{
    for (unsigned i = 0; i < nodes->len; i++) {
        if (sp_node_ready(nodes->pdata[i], now_ms))
            return nodes->pdata[i];
    }
    return NULL;
}

bool sp_node_has_template(const struct sp_node_row *node, const char *digest)
{
    g_autoptr(json_t) list = sp_json_parse(node->templates, strlen(node->templates), NULL);
    json_t *item;
    size_t i;
    json_array_foreach(list, i, item)
    {
        if (json_is_string(item) && strcmp(json_string_value(item), digest) == 0)
            return true;
    }
    return false;
}

GArray *sp_node_tiers(const struct sp_node_row *node)
{
    return sp_tiers_parse(node->tiers);
}

static bool try_node(const struct sp_node_row *node, enum sp_isolation isolation, bool untrusted,
                     struct sp_placement *ret, GError **error)
{
    g_autoptr(GArray) tiers = sp_node_tiers(node);
    struct sp_placement placement = {.node = node};
    if (!sp_isolation_choose(isolation, untrusted, (const struct sp_tier *)(void *)tiers->data,
                             tiers->len, &placement.isolation, &placement.isolation_reason, error))
        return false;
    *ret = placement;
    return true;
}

bool sp_place(GPtrArray *nodes, int64_t now_ms, enum sp_isolation isolation, bool untrusted,
              const char *template_digest, struct sp_placement *ret, GError **error)
{
    GError *why = NULL;
    for (int with_template = 1; with_template >= 0; with_template--) {
        for (unsigned i = 0; i < nodes->len; i++) {
            const struct sp_node_row *node = nodes->pdata[i];
            if (!sp_node_ready(node, now_ms) ||
                sp_node_has_template(node, template_digest) != (with_template == 1))
                continue;
            GError *no = NULL;
            if (try_node(node, isolation, untrusted, ret, &no)) {
                g_clear_error(&why);
                return true;
            }
            g_clear_error(&why);
            why = no;
        }
    }
    if (!why)
        why = g_error_new_literal(SP_ERROR, SP_ERROR_UNAVAILABLE,
                                  "no worker is ready now; try again in some seconds");
    g_propagate_error(error, why);
    return false;
}

bool sp_place_on(GPtrArray *nodes, int64_t now_ms, const char *name, enum sp_isolation isolation,
                 struct sp_placement *ret, GError **error)
{
    for (unsigned i = 0; i < nodes->len; i++) {
        const struct sp_node_row *node = nodes->pdata[i];
        if (strcmp(node->name, name) == 0 && sp_node_ready(node, now_ms))
            return try_node(node, isolation, false, ret, error);
    }
    g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE,
                "the snapshot is on node %s, which is not ready now", name);
    return false;
}
