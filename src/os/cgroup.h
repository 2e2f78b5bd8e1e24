/*
 * Control groups: one interface over cgroup v2, v1 and the hybrid of both (cgroups(7), the kernel's
 * admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1/).
 *
 * A group has one name, a plain file name, below the installation's root group. What it is made of:
 *
 *     v2      <mount>/<root>/<name>                       limits, kill, freeze, attach
 *     hybrid  <mount>/unified/<root>/<name>               kill, freeze, cpu time, attach by clone3
 *             <mount>/{memory,pids,cpu}/<root>/<name>     limits, memory use, OOM counter
 *     v1      <mount>/{memory,pids,cpu,freezer,cpuacct}/<root>/<name>
 *
 * A struct sp_cgroup is a handle without state of its own: it can be made at any time from the
 * name.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "os/cleanup.h"

struct sp_cgroups; /* the host's layout and the installation's root */
struct sp_cgroup;  /* one group */

enum sp_cgroup_kind { SP_CGROUP_V2, SP_CGROUP_HYBRID, SP_CGROUP_V1 };

#define SP_CGROUP_MAX_ATTACH 6

/* Zero members are not limited. Swap is never allowed on top of memory_bytes. */
struct sp_cgroup_limits {
    int64_t memory_bytes;
    int64_t pids;
    double cpus;
};

struct sp_cgroup_usage {
    int64_t memory_bytes;      /* now */
    int64_t memory_peak_bytes; /* 0 when the kernel does not tell */
    int64_t cpu_us;            /* user + system since the start */
    int64_t pids;              /* now */
    int64_t oom_kills;
};

/* What a starting process needs to be born in a group. */
struct sp_cgroup_attach {
    int dir_fd; /* cgroup2 directory for CLONE_INTO_CGROUP, or -1 */
    /* `tasks` files of the v1 hierarchies, O_WRONLY: the new process, while it has one thread,
     * writes "0" to each. The kernel then takes no global lock, unlike for a write to cgroup.procs
     * or of another's pid, which waits 10 ms and more now and then (cgroup_procs_write_start() in
     * kernel/cgroup/cgroup.c). */
    int procs_fds[SP_CGROUP_MAX_ATTACH];
    unsigned n_procs;
};

/* Finds the layout. mount_point NULL: /sys/fs/cgroup. root: name of the installation's group, made
 * at the first sp_cgroup_create() at the top of each hierarchy (on a host beside system.slice, so
 * that a service manager which stops the daemons leaves sandboxes alone). No process is moved for
 * that on a host. In a container whose processes are all in its top group, they move to
 * <root>-others there, because cgroup v2 wants it so. Fails with SP_ERROR_UNSUPPORTED, reason in
 * words, when memory, pids or cpu cannot be limited. */
struct sp_cgroups *sp_cgroups_open(const char *mount_point, const char *root, GError **error);
/* For unit tests: `folder` holds plain files instead of a cgroup file system. */
struct sp_cgroups *sp_cgroups_open_fake(const char *folder, const char *root, GError **error);
void sp_cgroups_free(struct sp_cgroups *cgroups);
SP_DEFINE_CLEANUP(struct sp_cgroups, sp_cgroups_free)
enum sp_cgroup_kind sp_cgroups_kind(const struct sp_cgroups *cgroups);
const char *sp_cgroups_kind_name(const struct sp_cgroups *cgroups); /* "cgroup v2" */
/* Removes the installation's root group if it has no groups any more. True when it is gone. */
bool sp_cgroups_remove_root(struct sp_cgroups *cgroups, GError **error);
/* Names of all groups of the installation; free with g_strfreev(). */
char **sp_cgroups_list(const struct sp_cgroups *cgroups);

/* A handle; neither looks whether the group exists nor makes it. Never fails on a valid name (no
 * '/', no leading dot); cgroups must outlive it. */
struct sp_cgroup *sp_cgroup_new(struct sp_cgroups *cgroups, const char *name);
void sp_cgroup_free(struct sp_cgroup *cgroup);
SP_DEFINE_CLEANUP(struct sp_cgroup, sp_cgroup_free)

/* Makes the group with its limits. Existing parts are used. On failure the caller removes. */
bool sp_cgroup_create(struct sp_cgroup *cgroup, const struct sp_cgroup_limits *limits,
                      GError **error);
/* Gives the cgroup2 directory to a uid/gid, so that it can make groups below and move its own
 * processes (cgroup-v2.rst, "Delegation"), but not change limits. No-op without a v2 directory. */
bool sp_cgroup_delegate(struct sp_cgroup *cgroup, uid_t uid, gid_t gid, GError **error);

/* Opens what a new process is attached with; the caller closes all. */
bool sp_cgroup_open_attach(const struct sp_cgroup *cgroup, struct sp_cgroup_attach *ret,
                           GError **error);
/* Moves a running process (all hierarchies). */
bool sp_cgroup_attach_pid(const struct sp_cgroup *cgroup, pid_t pid, GError **error);
/* The cgroup2 directory (O_PATH), or -1 without an error being set when the host has none. */
int sp_cgroup_open_dir(const struct sp_cgroup *cgroup, GError **error);
/* The file with the line "oom_kill N" (memory.events or memory.oom_control), read-only. */
int sp_cgroup_open_oom(const struct sp_cgroup *cgroup, GError **error);

/* Stops or continues every process of the group; waits until it is so. */
bool sp_cgroup_freeze(struct sp_cgroup *cgroup, bool frozen, int timeout_ms, GError **error);
/* Whether the group is told to be frozen, if it has come to that yet or not; read from the kernel.
 * False also for a group that does not exist. */
bool sp_cgroup_is_frozen(const struct sp_cgroup *cgroup);
/* Path of the group's directory in the hierarchy that freezes it; free with g_free(). */
char *sp_cgroup_freezer_dir(const struct sp_cgroup *cgroup);
/* Kills every process of the group and of groups below and waits until none is left. True when
 * the group does not exist. */
bool sp_cgroup_kill(struct sp_cgroup *cgroup, int timeout_ms, GError **error);
/* Removes the group and those below it; no process may be in it. Waits for the kernel's clean-up.
 * True when it does not exist. */
bool sp_cgroup_remove(struct sp_cgroup *cgroup, int timeout_ms, GError **error);

bool sp_cgroup_usage(const struct sp_cgroup *cgroup, struct sp_cgroup_usage *ret, GError **error);
