/*
 * The launcher: a single-threaded process of its own that starts all other processes, so that the
 * threaded worker never forks.
 *
 * `space launcher` (hidden) is exec'd by the worker with one end of a SOCK_SEQPACKET pair as fd
 * SP_LAUNCHER_FD. A request is an encoded plan with its fds (SCM_RIGHTS, unix(7)); the answer is
 * pid and pidfd, or the step that failed and its errno. The launcher ends when its socket closes.
 * What it has started lives on, holds none of its fds, and is reaped by it (or by init after its
 * end).
 *
 * Host pids: the launcher shares the worker's pid namespace.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "driver/plan.h"

#define SP_LAUNCHER_FD 3

struct sp_launcher;

/* Starts the launcher: self_exe is exec'd as { "space", "launcher" }. Tests pass their own binary,
 * whose main() calls sp_launcher_main(SP_LAUNCHER_FD) when argv[1] is "launcher". */
struct sp_launcher *sp_launcher_start(const char *self_exe, GError **error);
/* Ends and reaps the launcher, not what it has started. NULL is fine. */
void sp_launcher_stop(struct sp_launcher *launcher);
SP_DEFINE_CLEANUP(struct sp_launcher, sp_launcher_stop)

/* Starts the process of a plan and returns when it has exec'd its program: host pid, and a pidfd
 * that the caller closes (readable at the end of the process; pidfd_open(2)). On failure there is
 * no process, and the error names the step ("sbx_…: step 7 (mount proc at /proc): Operation not
 * permitted"). Thread-safe (calls queue up); at most SP_LAUNCH_TIMEOUT_MS. A dead launcher is
 * started again. */
bool sp_launcher_spawn(struct sp_launcher *launcher, const struct sp_plan *plan, pid_t *ret_pid,
                       int *ret_pidfd, GError **error);
#define SP_LAUNCH_TIMEOUT_MS 20000

/* A new user namespace without processes, uid and gid 0…count-1 mapped to host_first…: what
 * mount_setattr(2) MOUNT_ATTR_IDMAP takes. The id `count` is the host's root: overlayfs makes its
 * own files in an upper layer as the one who mounted it, who must have an id there. The caller
 * closes the fd; -1 on failure. */
int sp_launcher_user_namespace(struct sp_launcher *launcher, uint32_t host_first, uint32_t count,
                               GError **error);

/* Host pid of the launcher (0 while it is down); for tests and the doctor. */
pid_t sp_launcher_pid(struct sp_launcher *launcher);

/* The launcher's side: serves until the socket closes. Returns the exit status for main(). */
int sp_launcher_main(int socket_fd);
