/* A plan as text, for golden tests, logs and error messages. */
#include <linux/capability.h>
#include <sched.h>
#include <string.h>
#include <sys/capability.h>

#include "driver/plan_private.h"

static void append_flags(GString *out, uint64_t flags)
{
    static const struct {
        unsigned flag;
        const char *name;
    } names[] = {{SP_MOUNT_RO, "ro"},
                 {SP_MOUNT_NOSUID, "nosuid"},
                 {SP_MOUNT_NODEV, "nodev"},
                 {SP_MOUNT_NOEXEC, "noexec"},
                 {SP_BIND_RECURSIVE, "recursive"},
                 {SP_BIND_OPTIONAL, "optional"}};
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++)
        if (flags & names[i].flag)
            g_string_append_printf(out, " %s", names[i].name);
}

static void append_capabilities(GString *out, uint64_t keep)
{
    g_string_append(out, "capabilities");
    if (!keep)
        g_string_append(out, " none");
    for (int c = 0; c <= CAP_LAST_CAP; c++) {
        if (!(keep & (UINT64_C(1) << c)))
            continue;
        char *name = cap_to_name(c);
        g_string_append_printf(out, " %s", name ? name + strlen("cap_") : "?");
        cap_free(name);
    }
}

static void append_step(GString *out, const struct sp_plan *plan, const struct sp_step *step)
{
    static const char *const plain[SP_STEP_N_KINDS] = {
        [SP_STEP_PRIVATE_MOUNTS] = "private mounts",
        [SP_STEP_PIVOT] = "pivot to the new root",
        [SP_STEP_DROP_OLD_ROOT] = "drop the old root",
        [SP_STEP_LO_UP] = "lo up",
        [SP_STEP_CGROUP_NAMESPACE] = "cgroup namespace",
        [SP_STEP_NO_NEW_PRIVS] = "no new privileges",
    };
    const char *label = step->fd >= 0 ? plan->fds[step->fd].label : "";
    char *const *text = step->text;
    switch (step->kind) {
    case SP_STEP_ROOT_FD:
        g_string_append_printf(out, "root fd:%s", label);
        break;
    case SP_STEP_ROOT_TMPFS:
        g_string_append_printf(out, "root tmpfs %s", text[0] ? text[0] : "");
        break;
    case SP_STEP_ATTACH:
        g_string_append_printf(out, "attach fd:%s at %s", label, text[0]);
        break;
    case SP_STEP_MOUNT:
        g_string_append_printf(out, "mount %s at %s", text[1], text[0]);
        append_flags(out, step->a);
        if (text[2])
            g_string_append_printf(out, " (%s)", text[2]);
        break;
    case SP_STEP_BIND:
        g_string_append_printf(out, "bind %s at %s", text[1], text[0]);
        append_flags(out, step->a);
        break;
    case SP_STEP_REMOUNT:
        g_string_append_printf(out, "remount %s", text[0]);
        append_flags(out, step->a);
        break;
    case SP_STEP_MKDIR:
        g_string_append_printf(out, "mkdir %s %04o", text[0], (unsigned)step->a);
        break;
    case SP_STEP_TOUCH:
        g_string_append_printf(out, "touch %s %04o", text[0], (unsigned)step->a);
        break;
    case SP_STEP_SYMLINK:
        g_string_append_printf(out, "symlink %s to %s", text[0], text[1]);
        break;
    case SP_STEP_HOSTNAME:
        g_string_append_printf(out, "hostname %s", text[0]);
        break;
    case SP_STEP_RLIMIT:
        g_string_append_printf(out, "rlimit %d %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT,
                               step->number, step->a, step->b);
        break;
    case SP_STEP_BECOME:
        g_string_append_printf(out, "become uid %u gid %u", (unsigned)step->a, (unsigned)step->b);
        break;
    case SP_STEP_CAPABILITIES:
        append_capabilities(out, step->a);
        break;
    case SP_STEP_LISTEN:
        g_string_append_printf(out, "listen at %s as fd %d", text[0], step->number);
        break;
    case SP_STEP_SECCOMP:
        g_string_append_printf(out, "seccomp fd:%s", label);
        break;
    default:
        g_string_append(out, plain[step->kind]);
    }
}

char *sp_plan_describe_step(const struct sp_plan *plan, unsigned index)
{
    static const char *const places[] = {
        "launch request",
        "read the seccomp program",
        "clone3",
        "map ids",
        "join the cgroup",
        "set-up within its time",
        "set-up (the process was killed)",
        "drop capabilities",
        "pass fds",
        "chdir",
        "exec",
    };
    if (index >= SP_LAUNCH_REQUEST && index - SP_LAUNCH_REQUEST < G_N_ELEMENTS(places)) {
        const char *place = places[index - SP_LAUNCH_REQUEST];
        if (index == SP_LAUNCH_EXEC)
            return g_strdup_printf("%s %s", place, plan->exec_path);
        if (index == SP_LAUNCH_CHDIR)
            return g_strdup_printf("%s %s", place, plan->chdir ? plan->chdir : "/");
        return g_strdup(place);
    }
    if (index >= plan->n_steps)
        return g_strdup_printf("step %u", index);
    GString *out = g_string_new(NULL);
    g_string_append_printf(out, "step %u (", index);
    append_step(out, plan, &plan->steps[index]);
    g_string_append_c(out, ')');
    return g_string_free(out, FALSE);
}

static void append_parent_part(GString *out, const struct sp_plan *plan)
{
    static const struct {
        uint64_t flag;
        const char *name;
    } names[] = {{CLONE_NEWUSER, "user"}, {CLONE_NEWNS, "mount"}, {CLONE_NEWPID, "pid"},
                 {CLONE_NEWNET, "net"},   {CLONE_NEWIPC, "ipc"},  {CLONE_NEWUTS, "uts"}};
    g_string_append_printf(out, "plan %s\nnamespaces", plan->name);
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++)
        if (plan->namespaces & names[i].flag)
            g_string_append_printf(out, " %s", names[i].name);
    g_string_append_c(out, '\n');
    if (plan->map_count)
        g_string_append_printf(out, "map 0 to %u, %u ids\n", plan->map_first, plan->map_count);
    if (plan->cgroup_dir >= 0)
        g_string_append_printf(out, "born in fd:%s\n", plan->fds[plan->cgroup_dir].label);
    for (unsigned i = 0; i < plan->n_cgroup_procs; i++)
        g_string_append_printf(out, "joins fd:%s\n", plan->fds[plan->cgroup_procs[i]].label);
}

char *sp_plan_dump(const struct sp_plan *plan)
{
    GString *out = g_string_new(NULL);
    append_parent_part(out, plan);
    for (unsigned i = 0; i < plan->n_steps; i++) {
        g_string_append_printf(out, "%2u ", i);
        append_step(out, plan, &plan->steps[i]);
        g_string_append_c(out, '\n');
    }
    for (unsigned i = 0; i < plan->n_fds; i++)
        if (plan->fds[i].pass_as >= 0)
            g_string_append_printf(out, "fd %d is fd:%s\n", plan->fds[i].pass_as,
                                   plan->fds[i].label);
    g_string_append_printf(out, "chdir %s\nexec %s\n", plan->chdir ? plan->chdir : "/",
                           plan->exec_path ? plan->exec_path : "?");
    for (char **a = plan->argv; a && *a; a++)
        g_string_append_printf(out, "  arg %s\n", *a);
    for (char **e = plan->env; e && *e; e++)
        g_string_append_printf(out, "  env %s\n", *e);
    return g_string_free(out, FALSE);
}
