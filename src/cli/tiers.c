#include "cli/tiers.h"

static bool tried(json_t *tier)
{
    return !json_is_true(json_object_get(tier, "probing"));
}

static bool works(json_t *tier)
{
    return json_is_true(json_object_get(tier, "available"));
}

static bool all_tiers(json_t *nodes, bool (*holds)(json_t *tier))
{
    size_t i, j;
    json_t *node, *tier;
    json_array_foreach(json_object_get(nodes, "items"), i, node)
    {
        json_array_foreach(json_object_get(node, "tiers"), j, tier)
        {
            if (!holds(tier))
                return false;
        }
    }
    return true;
}

bool sp_tiers_still_tried(json_t *nodes)
{
    return !all_tiers(nodes, tried);
}

bool sp_tiers_all_work(json_t *nodes)
{
    return all_tiers(nodes, works);
}
