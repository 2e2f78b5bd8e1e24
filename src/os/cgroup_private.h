/* Shared by cgroup_layout.c, cgroup_top.c and cgroup.c only. */
#pragma once

#include "os/cgroup.h"

struct sp_cgroups {
    enum sp_cgroup_kind kind;
    bool fake;
    char *root;
    char *v2; /* mount point of the cgroup2 hierarchy; NULL in SP_CGROUP_V1 */
    /* Mount points of v1 hierarchies; NULL when not used in this kind. Several may be one mount. */
    char *memory, *pids, *cpu, *cpuacct, *freezer;
    /* The different ones of all above: each group has a directory in every one. */
    const char *hierarchies[SP_CGROUP_MAX_ATTACH];
    unsigned n_hierarchies;
};

struct sp_cgroup {
    struct sp_cgroups *cgroups;
    char *name;
};

/* Writes a control file. `optional`: a file that does not exist is no error. */
bool sp_cgroup_write(const struct sp_cgroups *cgroups, const char *dir, const char *file,
                     const char *text, bool optional, GError **error);
/* Reads a small file; free with g_free(). NULL with *error set (SP_ERROR_NOT_FOUND if missing). */
char *sp_cgroup_read(const char *dir, const char *file, GError **error);
/* The number behind "key " on its line, or of the whole file for key NULL; fallback if there is
 * none. */
int64_t sp_cgroup_read_number(const char *dir, const char *file, const char *key, int64_t fallback);
/* Whether text, a list separated by blanks, holds word. */
bool sp_cgroup_has_word(const char *text, const char *word);
/* Makes the installation's group in every hierarchy, with controllers enabled for those below
 * (cgroup_top.c). Moves nobody on a host. SP_ERROR_UNSUPPORTED when processes that are not ours
 * would have to move. */
bool sp_cgroups_ensure_root(const struct sp_cgroups *cgroups, GError **error);
/* Removes a directory of a hierarchy with those below it; EBUSY is retried until the time
 * (sp_time_monotonic_ms). True when it is gone. */
bool sp_cgroup_remove_dir(const struct sp_cgroups *cgroups, const char *dir, int64_t until_ms,
                          GError **error);
