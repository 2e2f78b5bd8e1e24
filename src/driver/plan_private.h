/* The inside of a plan, for plan.c, plan_text.c and the launcher's side only. */
#pragma once

#include "driver/plan.h"
#include "os/cgroup.h"

enum sp_step_kind {
    SP_STEP_PRIVATE_MOUNTS,
    SP_STEP_ROOT_FD,
    SP_STEP_ROOT_TMPFS,
    SP_STEP_ATTACH,
    SP_STEP_MOUNT,
    SP_STEP_BIND,
    SP_STEP_REMOUNT,
    SP_STEP_MKDIR,
    SP_STEP_TOUCH,
    SP_STEP_SYMLINK,
    SP_STEP_PIVOT,
    SP_STEP_DROP_OLD_ROOT,
    SP_STEP_HOSTNAME,
    SP_STEP_LO_UP,
    SP_STEP_CGROUP_NAMESPACE,
    SP_STEP_RLIMIT,
    SP_STEP_BECOME,
    SP_STEP_CAPABILITIES,
    SP_STEP_NO_NEW_PRIVS,
    SP_STEP_SECCOMP,
    SP_STEP_LISTEN,
    SP_STEP_N_KINDS,
};

/* Places where a launch can fail that are not steps of the list. */
enum sp_launch_place {
    SP_LAUNCH_REQUEST = 1000, /* the message was not understood */
    SP_LAUNCH_SECCOMP_READ,
    SP_LAUNCH_CLONE,
    SP_LAUNCH_MAP_IDS,
    SP_LAUNCH_CGROUP,
    SP_LAUNCH_TIMEOUT,
    SP_LAUNCH_DIED, /* killed by someone before it could exec */
    SP_LAUNCH_DROP_CAPABILITIES,
    SP_LAUNCH_PASS_FDS,
    SP_LAUNCH_CHDIR,
    SP_LAUNCH_EXEC,
};

#define SP_STEP_TEXTS 3
struct sp_step {
    enum sp_step_kind kind;
    int fd;        /* index in the plan's fds, -1 none */
    uint64_t a, b; /* mode, flags, ids, limits: by kind */
    int number;
    char *text[SP_STEP_TEXTS]; /* targets first */
};

struct sp_plan_fd {
    char *label;
    int fd;
    bool owned;
    int pass_as; /* number in the program, -1 none */
};

struct sp_plan {
    char *name;
    uint64_t namespaces;
    uint32_t map_first, map_count;
    int cgroup_dir; /* index, -1 none */
    int cgroup_procs[SP_CGROUP_MAX_ATTACH];
    unsigned n_cgroup_procs;
    struct sp_plan_fd fds[SP_PLAN_MAX_FDS];
    unsigned n_fds;
    struct sp_step steps[SP_PLAN_MAX_STEPS];
    unsigned n_steps;
    char *chdir; /* NULL: "/" */
    char *exec_path;
    char **argv, **env;
};
