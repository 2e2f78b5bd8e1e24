#include "model/isolation.h"

#include <string.h>

#include "base/error.h"
#include "base/json.h"

static void tier_clear(gpointer tier)
{
    g_free(((struct sp_tier *)tier)->detail);
    g_free(((struct sp_tier *)tier)->save_memory_detail);
}

GArray *sp_tiers_parse(const char *json)
{
    GArray *tiers = g_array_new(FALSE, TRUE, sizeof(struct sp_tier));
    g_array_set_clear_func(tiers, tier_clear);
    g_autoptr(json_t) list = sp_json_parse(json, strlen(json), NULL);
    json_t *item;
    size_t i;
    json_array_foreach(list, i, item)
    {
        struct sp_tier tier = {.available = json_is_true(json_object_get(item, "available")),
                               .probing = json_is_true(json_object_get(item, "probing")),
                               .save_memory = json_is_true(json_object_get(item, "save_memory"))};
        const char *name = json_string_value(json_object_get(item, "tier"));
        if (!sp_isolation_parse(name, &tier.tier))
            continue;
        tier.detail = g_strdup(json_string_value(json_object_get(item, "detail")));
        tier.save_memory_detail =
            g_strdup(json_string_value(json_object_get(item, "save_memory_detail")));
        g_array_append_val(tiers, tier);
    }
    return tiers;
}

static const struct sp_tier *find(enum sp_isolation tier, const struct sp_tier *tiers, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (tiers[i].tier == tier)
            return &tiers[i];
    }
    return NULL;
}

static bool works_with_kvm(const struct sp_tier *tier)
{
    const char *detail = tier && tier->available && tier->detail ? tier->detail : "";
    return g_ascii_strncasecmp(detail, "kvm", 3) == 0 && !g_ascii_isalnum(detail[3]);
}

bool sp_isolation_choose(enum sp_isolation wanted, bool untrusted, const struct sp_tier *tiers,
                         unsigned n_tiers, enum sp_isolation *ret, const char **ret_reason,
                         GError **error)
{
    enum sp_isolation choice = wanted;
    const char *reason = "requested";
    if (wanted == SP_ISOLATION_AUTO) {
        if (untrusted) {
            choice = SP_ISOLATION_MICROVM;
            reason = "auto: untrusted code gets a kernel of its own";
        } else if (works_with_kvm(find(SP_ISOLATION_MICROVM, tiers, n_tiers))) {
            choice = SP_ISOLATION_MICROVM;
            reason = "auto: KVM is available";
        } else {
            choice = SP_ISOLATION_CONTAINER;
            reason = "auto: no KVM here";
        }
    } else if (untrusted && wanted == SP_ISOLATION_CONTAINER) {
        sp_error_set_field(error, "/isolation",
                           "untrusted code is not run in the container tier; use microvm or auto");
        return false;
    }
    const struct sp_tier *tier = find(choice, tiers, n_tiers);
    if (!tier || !(tier->available || tier->probing)) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "isolation %s is not available: %s",
                    sp_isolation_names[choice],
                    tier && tier->detail ? tier->detail : "no worker offers it");
        return false;
    }
    *ret = choice;
    *ret_reason = reason;
    return true;
}

char *sp_tier_no_memory(const char *tiers_json, enum sp_isolation isolation)
{
    g_autoptr(GArray) tiers = sp_tiers_parse(tiers_json);
    const struct sp_tier *tier =
        find(isolation, (const struct sp_tier *)(void *)tiers->data, tiers->len);
    if (tier && (tier->save_memory || tier->probing))
        return NULL;
    bool detail = tier && tier->save_memory_detail && tier->save_memory_detail[0];
    return g_strdup_printf("the %s tier cannot keep memory on this node%s%s",
                           sp_isolation_names[isolation], detail ? ": " : "",
                           detail ? tier->save_memory_detail : "");
}

void sp_tier_set_no_memory_error(GError **error, enum sp_isolation isolation, const char *why)
{
    sp_error_set_code_field(error, SP_ERROR_UNSUPPORTED, "/memory",
                            "%s; pass \"memory\": false to keep the disk only (processes end)%s",
                            why,
                            isolation == SP_ISOLATION_CONTAINER
                                ? ", install CRIU 4.2 or newer on the node, or use the microvm tier"
                                : "");
}
