#include "model/isolation.h"

#include <string.h>

#include "base/error.h"

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
