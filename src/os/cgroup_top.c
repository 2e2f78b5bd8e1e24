/* The installation's own group in each hierarchy, and what it takes that groups below it can be
 * limited. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "os/cgroup_private.h"

#define MAX_PASSES 16

/* Whether the hierarchy's top is the root of all, which alone has no cgroup.type. It may hold
 * processes and hand out controllers (cgroup-v2.rst, "No Internal Process Constraint"). */
static bool is_root_of_all(const struct sp_cgroups *cgroups)
{
    g_autofree char *type = sp_cgroup_read(cgroups->v2, "cgroup.type", NULL);
    return !type;
}

/* Whether this is a container whose first process is in the top group of its cgroup namespace: who
 * else is in that group belongs to the container too, and nobody arranges its groups. (A manager
 * such as systemd leaves the top group first of all.) */
static bool is_bare_container(const struct sp_cgroups *cgroups)
{
    g_autofree char *first = NULL;
    if (cgroups->fake || !g_file_get_contents("/proc/1/cgroup", &first, NULL, NULL))
        return false;
    return g_str_has_prefix(first, "0::/\n") || strstr(first, "\n0::/\n");
}

/* Whether a process runs this program: a daemon of SPACE. */
static bool is_own_daemon(const char *pid)
{
    g_autofree char *exe = g_build_filename("/proc", pid, "exe", NULL);
    struct stat theirs, ours;
    return stat(exe, &theirs) == 0 && stat("/proc/self/exe", &ours) == 0 &&
           theirs.st_dev == ours.st_dev && theirs.st_ino == ours.st_ino;
}

/* The processes of the top group, NULL-terminated. */
static char **list_top(const struct sp_cgroups *cgroups, GError **error)
{
    g_autofree char *procs = sp_cgroup_read(cgroups->v2, "cgroup.procs", error);
    return procs ? g_strsplit(g_strchomp(procs), "\n", -1) : NULL;
}

/* The first that must stay where it is, or NULL. 0 is one that our pid namespace does not show. */
static const char *find_foreign(char **pids, bool is_container)
{
    for (; *pids; pids++)
        if (g_str_equal(*pids, "0") || (!is_container && !is_own_daemon(*pids)))
            return *pids;
    return NULL;
}

/* Moves the processes of the top group to a group beside the installation's: all in a container of
 * our own, else only SPACE's own daemons. Any other makes it fail before one is moved. */
static bool empty_top(const struct sp_cgroups *cgroups, GError **error)
{
    bool is_container = is_bare_container(cgroups);
    g_autofree char *name = g_strconcat(cgroups->root, "-others", NULL);
    g_autofree char *others = g_build_filename(cgroups->v2, name, NULL);
    /* Again while there are some, since they may fork meanwhile. */
    for (unsigned i = 0; i < MAX_PASSES; i++) {
        g_auto(GStrv) pids = list_top(cgroups, error);
        if (!pids || !*pids)
            return pids != NULL;
        const char *foreign = find_foreign(pids, is_container);
        if (foreign) {
            g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED,
                        "groups in %s cannot be limited while processes are in it, and process %s "
                        "is not SPACE's to move: move it to a group below",
                        cgroups->v2, foreign);
            return false;
        }
        if (mkdir(others, 0755) < 0 && errno != EEXIST) {
            sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "mkdir %s", others);
            return false;
        }
        for (char **pid = pids; *pid; pid++) /* one that has just ended is no matter */
            sp_cgroup_write(cgroups, others, "cgroup.procs", *pid, true, NULL);
    }
    return true; /* handing out controllers will say why not */
}

static bool enable_controllers(const struct sp_cgroups *cgroups, const char *dir, GError **error)
{
    g_autofree char *enabled = sp_cgroup_read(dir, "cgroup.subtree_control", NULL);
    if (enabled && sp_cgroup_has_word(enabled, "memory") && sp_cgroup_has_word(enabled, "pids") &&
        sp_cgroup_has_word(enabled, "cpu"))
        return true;
    return sp_cgroup_write(cgroups, dir, "cgroup.subtree_control", "+memory +pids +cpu", false,
                           error);
}

bool sp_cgroups_ensure_root(const struct sp_cgroups *cgroups, GError **error)
{
    for (unsigned i = 0; i < cgroups->n_hierarchies; i++) {
        g_autofree char *dir = g_build_filename(cgroups->hierarchies[i], cgroups->root, NULL);
        if (mkdir(dir, 0755) < 0 && errno != EEXIST) {
            sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "mkdir %s", dir);
            return false;
        }
    }
    if (cgroups->kind != SP_CGROUP_V2)
        return true;
    g_autofree char *dir = g_build_filename(cgroups->v2, cgroups->root, NULL);
    GError *cause = NULL;
    if (!enable_controllers(cgroups, cgroups->v2, &cause)) {
        if (is_root_of_all(cgroups)) {
            g_propagate_error(error, cause);
            return false;
        }
        g_clear_error(&cause);
        if (!empty_top(cgroups, error) || !enable_controllers(cgroups, cgroups->v2, error))
            return false;
    }
    return enable_controllers(cgroups, dir, error);
}
