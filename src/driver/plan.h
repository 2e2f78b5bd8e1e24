/*
 * A plan: how one process is to be started, as a pure value.
 *
 * A driver builds a plan without touching the system; plans are compared with golden files as text.
 * The launcher (driver/launcher.h) carries it out: first the *parent* part (namespaces, uid map,
 * cgroups), then the steps in the new process, in the order they were added, then exec. A failure
 * names the step.
 *
 * File descriptors are part of a plan: taken (the plan closes them when it is freed) or borrowed.
 * They may be -1 in a plan that is only dumped.
 *
 * The usual order of steps:
 *
 *     sp_plan_become(0, 0)               only with a uid map: root of the new user namespace
 *     sp_plan_private_mounts()
 *     sp_plan_root_fd() / _root_tmpfs()  the new root is mounted and is the working directory
 *     … relative targets: sp_plan_mkdir("usr"), sp_plan_bind("/usr", "usr") with host sources …
 *     sp_plan_pivot()                    now "/" is the new root, the old one is hidden
 *     … absolute targets: sp_plan_mount("proc", "/proc") …  (links resolve in the new root)
 *     sp_plan_drop_old_root()
 *     hostname, lo, rlimits, capabilities, become, no_new_privs, seccomp
 *     sp_plan_pass_fd(), sp_plan_exec()  (their place does not matter: always last)
 *
 * A plan belongs to one thread. All strings are copied. Steps are bounded by SP_PLAN_MAX_*; going
 * beyond is a programming error and aborts.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "os/cleanup.h"

#define SP_PLAN_MAX_STEPS 192
#define SP_PLAN_MAX_FDS 64
#define SP_PLAN_MAX_BYTES 65536 /* encoded */
#define SP_PLAN_MAX_NUMBER 127  /* highest fd number that a process can be given */

/* Flags of mounts and binds. The values are those of both mount(2) MS_* and mount_setattr(2)
 * MOUNT_ATTR_*, which agree for these four. */
#define SP_MOUNT_RO 0x1u
#define SP_MOUNT_NOSUID 0x2u
#define SP_MOUNT_NODEV 0x4u
#define SP_MOUNT_NOEXEC 0x8u
/* Binds only: with everything mounted below (AT_RECURSIVE). */
#define SP_BIND_RECURSIVE 0x10000u
/* Binds only: skipped when the source or the target does not exist. */
#define SP_BIND_OPTIONAL 0x20000u

struct sp_plan;
struct sp_cgroup;

/* name: for messages and the dump ("sbx_…"). */
struct sp_plan *sp_plan_new(const char *name);
void sp_plan_free(struct sp_plan *plan); /* closes the taken fds; NULL is fine */
const char *sp_plan_name(const struct sp_plan *plan);
SP_DEFINE_CLEANUP(struct sp_plan, sp_plan_free)

/* --- the parent's part --- */

/* CLONE_NEWUSER, CLONE_NEWNS, … of clone(2). CLONE_NEWCGROUP is done by the child, after it is in
 * its cgroup. */
void sp_plan_namespaces(struct sp_plan *plan, uint64_t clone_flags);
/* uid and gid 0…count-1 of the new user namespace are host_first… outside (user_namespaces(7)). */
void sp_plan_map_ids(struct sp_plan *plan, uint32_t host_first, uint32_t count);
/* The process starts in this cgroup (os/cgroup.h): opens what is needed and takes the fds. */
bool sp_plan_join_cgroup(struct sp_plan *plan, const struct sp_cgroup *cgroup, GError **error);
/* The same by hand: a cgroup2 directory (clone3(2) CLONE_INTO_CGROUP), and `tasks` files open for
 * writing (v1 hierarchies, at most SP_CGROUP_MAX_ATTACH), to which the process writes "0" first of
 * all. Takes the fd. */
void sp_plan_cgroup_dir(struct sp_plan *plan, const char *label, int fd);
void sp_plan_cgroup_procs(struct sp_plan *plan, const char *label, int fd);

/* --- steps: mounts --- */

/* Every mount of the new mount namespace becomes private. First of all mount steps. */
void sp_plan_private_mounts(struct sp_plan *plan);
/* A detached mount (fsmount(2), open_tree(2)) becomes the new root and the working directory. Takes
 * fd. */
void sp_plan_root_fd(struct sp_plan *plan, const char *label, int fd);
/* A new tmpfs becomes the new root and the working directory. options: "size=1m,mode=755". */
void sp_plan_root_tmpfs(struct sp_plan *plan, const char *options);
/* Attaches a detached mount to an existing place. Takes fd. */
void sp_plan_attach(struct sp_plan *plan, const char *label, int fd, const char *target);
/* mount(2) of a file system without a device: "proc", "tmpfs", "devpts". options may be NULL. */
void sp_plan_mount(struct sp_plan *plan, const char *type, const char *target, const char *options,
                   unsigned flags);
/* Binds a path onto an existing file or directory, with SP_MOUNT_* and SP_BIND_* flags. source is
 * looked up in the mount namespace as it is at this step. */
void sp_plan_bind(struct sp_plan *plan, const char *source, const char *target, unsigned flags);
/* A directory, an empty file (mount point for a file), a symbolic link. The first two succeed when
 * there is one already. */
void sp_plan_mkdir(struct sp_plan *plan, const char *path, mode_t mode);
void sp_plan_touch(struct sp_plan *plan, const char *path, mode_t mode);
void sp_plan_symlink(struct sp_plan *plan, const char *points_to, const char *path);
/* The working directory becomes "/" (pivot_root(2)); the old root is hidden under it … */
void sp_plan_pivot(struct sp_plan *plan);
/* … and is detached here: nothing of the host's tree can be reached any more. */
void sp_plan_drop_old_root(struct sp_plan *plan);
/* Makes the mount at path read-only (mount_setattr(2)): a tmpfs root, once it is filled. */
void sp_plan_remount(struct sp_plan *plan, const char *path, unsigned flags);

/* --- steps: everything else --- */

void sp_plan_hostname(struct sp_plan *plan, const char *hostname);
void sp_plan_lo_up(struct sp_plan *plan);
/* A new cgroup namespace whose root is the cgroup the process is in. */
void sp_plan_cgroup_namespace(struct sp_plan *plan);
void sp_plan_rlimit(struct sp_plan *plan, int resource, uint64_t soft, uint64_t hard);
/* No supplementary groups, then these ids, real, effective and saved. */
void sp_plan_become(struct sp_plan *plan, uint32_t uid, uint32_t gid);
/* Drops from the bounding set all capabilities whose bit (1 << CAP_x) is not in keep, and sets the
 * process's own sets to keep (0: none at all). capabilities(7). */
void sp_plan_capabilities(struct sp_plan *plan, uint64_t keep);
void sp_plan_no_new_privs(struct sp_plan *plan);
/* A file that holds a BPF program (os/seccomp.h). Borrowed: the fd must live as long as the plan.
 */
void sp_plan_seccomp(struct sp_plan *plan, const char *label, int borrowed_fd);

/* --- steps: the program --- */

/* The program gets this fd as `number` (0…SP_PLAN_MAX_NUMBER). Numbers 0, 1, 2 that are not passed
 * are /dev/null, opened inside the new root when it has one. No other fd reaches the program. */
void sp_plan_pass_fd(struct sp_plan *plan, const char *label, int fd, int number); /* takes fd */
void sp_plan_pass_fd_borrowed(struct sp_plan *plan, const char *label, int fd, int number);
/* A step: a stream socket of the process's own network namespace listens at the path (at most 107
 * bytes, unix(7)), which must not exist; the program gets it as `number`. At most one a plan. Only
 * who can write to a socket's file can connect to it, from whatever network namespace. */
void sp_plan_listen(struct sp_plan *plan, const char *path, int number);
/* Working directory of the program; "/" when not given. */
void sp_plan_chdir(struct sp_plan *plan, const char *path);
/* Required. path is looked up at the end (in the new root). argv and env are NULL-terminated; the
 * program gets exactly this environment. */
void sp_plan_exec(struct sp_plan *plan, const char *path, const char *const *argv,
                  const char *const *env);

/* --- as text, as bytes --- */

/* One line a step, ends with a newline; fds by label. For golden tests and logs. Free with
 * g_free(). */
char *sp_plan_dump(const struct sp_plan *plan);
/* The dump's line of step `index` (as reported by a failed launch). Free with g_free(). */
char *sp_plan_describe_step(const struct sp_plan *plan, unsigned index);

/* For the launcher only. Encodes into ret_bytes (SP_PLAN_MAX_BYTES); ret_fds borrows the fds. */
bool sp_plan_encode(const struct sp_plan *plan, GByteArray *ret_bytes, int ret_fds[SP_PLAN_MAX_FDS],
                    unsigned *ret_n_fds, GError **error);
/* Inverse. Takes over the fds on success. Every length and number is checked. */
struct sp_plan *sp_plan_decode(const void *bytes, size_t len, const int *fds, unsigned n_fds,
                               GError **error);
