#include "node/ending.h"

#include <inttypes.h>

#include "driver/record.h"
#include "os/cgroup.h"

/* OOM kills in the sandbox's group; 0 when that cannot be told. */
static int64_t oom_kills(const struct sp_sandbox *sandbox)
{
    struct sp_record record = {0};
    struct sp_cgroup_usage usage = {0};
    if (!sandbox->node->cgroup_root || !sp_record_load(sandbox->run_dir, &record, NULL))
        return 0;
    struct sp_cgroups *cgroups =
        record.cgroup ? sp_cgroups_open(NULL, sandbox->node->cgroup_root, NULL) : NULL;
    if (cgroups) {
        struct sp_cgroup *cgroup = sp_cgroup_new(cgroups, record.cgroup);
        if (!sp_cgroup_usage(cgroup, &usage, NULL))
            usage.oom_kills = 0;
        sp_cgroup_free(cgroup);
        sp_cgroups_free(cgroups);
    }
    sp_record_clear(&record);
    return usage.oom_kills;
}

char *sp_ending_reason(const struct sp_sandbox *sandbox)
{
    int64_t kills = oom_kills(sandbox);
    if (kills > 0)
        return g_strdup_printf("the sandbox has ended by itself, after the kernel killed %" PRId64
                               " of its processes for want of memory; its memory is lost",
                               kills);
    return g_strdup("the sandbox has ended by itself; its memory is lost");
}
