#include "driver/plan.h"

#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "driver/plan_private.h"

struct sp_plan *sp_plan_new(const char *name)
{
    struct sp_plan *plan = g_new0(struct sp_plan, 1);
    plan->name = g_strdup(name);
    plan->cgroup_dir = -1;
    return plan;
}

void sp_plan_free(struct sp_plan *plan)
{
    if (!plan)
        return;
    for (unsigned i = 0; i < plan->n_fds; i++) {
        if (plan->fds[i].owned && plan->fds[i].fd >= 0)
            close(plan->fds[i].fd);
        g_free(plan->fds[i].label);
    }
    for (unsigned i = 0; i < plan->n_steps; i++)
        for (unsigned t = 0; t < SP_STEP_TEXTS; t++)
            g_free(plan->steps[i].text[t]);
    g_free(plan->name);
    g_free(plan->chdir);
    g_free(plan->exec_path);
    g_strfreev(plan->argv);
    g_strfreev(plan->env);
    g_free(plan);
}

const char *sp_plan_name(const struct sp_plan *plan)
{
    return plan->name;
}

static int add_fd(struct sp_plan *plan, const char *label, int fd, bool owned)
{
    g_assert(plan->n_fds < SP_PLAN_MAX_FDS);
    plan->fds[plan->n_fds] =
        (struct sp_plan_fd){.label = g_strdup(label), .fd = fd, .owned = owned, .pass_as = -1};
    return (int)plan->n_fds++;
}

static struct sp_step *add_step(struct sp_plan *plan, enum sp_step_kind kind, const char *text0,
                                const char *text1, const char *text2)
{
    g_assert(plan->n_steps < SP_PLAN_MAX_STEPS);
    struct sp_step *step = &plan->steps[plan->n_steps++];
    *step = (struct sp_step){
        .kind = kind, .fd = -1, .text = {g_strdup(text0), g_strdup(text1), g_strdup(text2)}};
    return step;
}

void sp_plan_namespaces(struct sp_plan *plan, uint64_t clone_flags)
{
    g_assert(!(clone_flags & CLONE_NEWCGROUP));
    plan->namespaces = clone_flags;
}

void sp_plan_map_ids(struct sp_plan *plan, uint32_t host_first, uint32_t count)
{
    plan->map_first = host_first;
    plan->map_count = count;
}

void sp_plan_cgroup_dir(struct sp_plan *plan, const char *label, int fd)
{
    plan->cgroup_dir = add_fd(plan, label, fd, true);
}

void sp_plan_cgroup_procs(struct sp_plan *plan, const char *label, int fd)
{
    g_assert(plan->n_cgroup_procs < SP_CGROUP_MAX_ATTACH);
    plan->cgroup_procs[plan->n_cgroup_procs++] = add_fd(plan, label, fd, true);
}

bool sp_plan_join_cgroup(struct sp_plan *plan, const struct sp_cgroup *cgroup, GError **error)
{
    struct sp_cgroup_attach attach;
    if (!sp_cgroup_open_attach(cgroup, &attach, error))
        return false;
    if (attach.dir_fd >= 0)
        sp_plan_cgroup_dir(plan, "cgroup", attach.dir_fd);
    for (unsigned i = 0; i < attach.n_procs; i++)
        sp_plan_cgroup_procs(plan, "cgroup-v1", attach.procs_fds[i]);
    return true;
}

void sp_plan_private_mounts(struct sp_plan *plan)
{
    add_step(plan, SP_STEP_PRIVATE_MOUNTS, NULL, NULL, NULL);
}

void sp_plan_root_fd(struct sp_plan *plan, const char *label, int fd)
{
    int index = add_fd(plan, label, fd, true);
    add_step(plan, SP_STEP_ROOT_FD, NULL, NULL, NULL)->fd = index;
}

void sp_plan_root_tmpfs(struct sp_plan *plan, const char *options)
{
    add_step(plan, SP_STEP_ROOT_TMPFS, options, NULL, NULL);
}

void sp_plan_attach(struct sp_plan *plan, const char *label, int fd, const char *target)
{
    int index = add_fd(plan, label, fd, true);
    add_step(plan, SP_STEP_ATTACH, target, NULL, NULL)->fd = index;
}

void sp_plan_mount(struct sp_plan *plan, const char *type, const char *target, const char *options,
                   unsigned flags)
{
    add_step(plan, SP_STEP_MOUNT, target, type, options)->a = flags;
}

void sp_plan_bind(struct sp_plan *plan, const char *source, const char *target, unsigned flags)
{
    add_step(plan, SP_STEP_BIND, target, source, NULL)->a = flags;
}

void sp_plan_remount(struct sp_plan *plan, const char *path, unsigned flags)
{
    add_step(plan, SP_STEP_REMOUNT, path, NULL, NULL)->a = flags;
}

void sp_plan_mkdir(struct sp_plan *plan, const char *path, mode_t mode)
{
    add_step(plan, SP_STEP_MKDIR, path, NULL, NULL)->a = mode;
}

void sp_plan_touch(struct sp_plan *plan, const char *path, mode_t mode)
{
    add_step(plan, SP_STEP_TOUCH, path, NULL, NULL)->a = mode;
}

void sp_plan_symlink(struct sp_plan *plan, const char *points_to, const char *path)
{
    add_step(plan, SP_STEP_SYMLINK, path, points_to, NULL);
}

void sp_plan_pivot(struct sp_plan *plan)
{
    add_step(plan, SP_STEP_PIVOT, NULL, NULL, NULL);
}

void sp_plan_drop_old_root(struct sp_plan *plan)
{
    add_step(plan, SP_STEP_DROP_OLD_ROOT, NULL, NULL, NULL);
}

void sp_plan_hostname(struct sp_plan *plan, const char *hostname)
{
    add_step(plan, SP_STEP_HOSTNAME, hostname, NULL, NULL);
}

void sp_plan_lo_up(struct sp_plan *plan)
{
    add_step(plan, SP_STEP_LO_UP, NULL, NULL, NULL);
}

void sp_plan_cgroup_namespace(struct sp_plan *plan)
{
    add_step(plan, SP_STEP_CGROUP_NAMESPACE, NULL, NULL, NULL);
}

void sp_plan_rlimit(struct sp_plan *plan, int resource, uint64_t soft, uint64_t hard)
{
    struct sp_step *step = add_step(plan, SP_STEP_RLIMIT, NULL, NULL, NULL);
    step->number = resource;
    step->a = soft;
    step->b = hard;
}

void sp_plan_become(struct sp_plan *plan, uint32_t uid, uint32_t gid)
{
    struct sp_step *step = add_step(plan, SP_STEP_BECOME, NULL, NULL, NULL);
    step->a = uid;
    step->b = gid;
}

void sp_plan_capabilities(struct sp_plan *plan, uint64_t keep)
{
    add_step(plan, SP_STEP_CAPABILITIES, NULL, NULL, NULL)->a = keep;
}

void sp_plan_no_new_privs(struct sp_plan *plan)
{
    add_step(plan, SP_STEP_NO_NEW_PRIVS, NULL, NULL, NULL);
}

void sp_plan_seccomp(struct sp_plan *plan, const char *label, int borrowed_fd)
{
    int index = add_fd(plan, label, borrowed_fd, false);
    add_step(plan, SP_STEP_SECCOMP, NULL, NULL, NULL)->fd = index;
}

static void pass(struct sp_plan *plan, const char *label, int fd, int number, bool owned)
{
    g_assert(number >= 0 && number <= SP_PLAN_MAX_NUMBER);
    for (unsigned i = 0; i < plan->n_fds; i++)
        g_assert(plan->fds[i].pass_as != number);
    plan->fds[add_fd(plan, label, fd, owned)].pass_as = number;
}

void sp_plan_pass_fd(struct sp_plan *plan, const char *label, int fd, int number)
{
    pass(plan, label, fd, number, true);
}

void sp_plan_pass_fd_borrowed(struct sp_plan *plan, const char *label, int fd, int number)
{
    pass(plan, label, fd, number, false);
}

void sp_plan_listen(struct sp_plan *plan, const char *path, int number)
{
    g_assert(number >= 0 && number <= SP_PLAN_MAX_NUMBER);
    g_assert(strlen(path) < sizeof((struct sockaddr_un *)NULL)->sun_path);
    for (unsigned i = 0; i < plan->n_steps; i++)
        g_assert(plan->steps[i].kind != SP_STEP_LISTEN);
    add_step(plan, SP_STEP_LISTEN, path, NULL, NULL)->number = number;
}

void sp_plan_chdir(struct sp_plan *plan, const char *path)
{
    g_free(plan->chdir);
    plan->chdir = g_strdup(path);
}

void sp_plan_exec(struct sp_plan *plan, const char *path, const char *const *argv,
                  const char *const *env)
{
    g_free(plan->exec_path);
    g_strfreev(plan->argv);
    g_strfreev(plan->env);
    plan->exec_path = g_strdup(path);
    plan->argv = g_strdupv((char **)argv);
    plan->env = g_strdupv((char **)env);
}
