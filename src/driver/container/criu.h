/*
 * The memory of a sandbox, saved and restored by CRIU (criu.org, criu(8)), version 4.2 or newer, as
 * a program. Private to the folder; docs/container.md tells what it asks of the sandbox.
 *
 * The folder of a saved memory holds CRIU's images, `agent` (the very file that the processes have
 * mapped) and `space.ini`: the names under which CRIU knows the two files of the host that the
 * agent has open, and which process was in which of the agent's cgroups.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <sys/types.h>

#include "driver/container/container.h"

#define SP_CRIU_FOLDER "criu" /* in a saved form */
#define SP_CRIU_AGENT "agent"
#define SP_CRIU_FACTS "space.ini"
/* For its environment: the command it saves and restores packet filters with. A sandbox has none
 * and can make none, and a host need not have iptables. */
#define SP_CRIU_NO_IPTABLES "CR_IPTABLES=true"
#define SP_CRIU_WORK "criu-work" /* in a run directory */

/* Path of the program: $SPACE_CRIU, else `criu` as found; NULL when there is none. Free with
 * g_free(). */
char *sp_criu_find(void);
/* "4.2"; NULL when it does not answer. Free with g_free(). */
char *sp_criu_version(const char *criu);
/* Whether a version is new enough. */
bool sp_criu_version_fits(const char *version);

/* Saves the memory of a paused sandbox into the folder, which is made. The sandbox stays, paused.
 * Nobody may be connected to the agent. SP_ERROR_FAILED_PRECONDITION with CRIU's own words when it
 * holds something that cannot be saved. */
bool sp_criu_dump(struct sp_container *container, const char *criu, const char *folder,
                  GError **error);

/* pidfd of a CRIU that an ended worker has left saving a sandbox; -1: there is none. The caller
 * closes it. */
int sp_criu_left_dump(const char *run_dir);

/* Whether that one has begun longer ago than any may take. Its worker would have ended it. */
bool sp_criu_is_overdue(const char *run_dir);

/* The first error of a log of CRIU; never NULL. Free with g_free(). */
char *sp_criu_last_error(const char *log_path);

/* How long CRIU may take for so much memory, on a slow disk too. */
int sp_criu_timeout_ms(int64_t bytes);

/* What a restore needs. */
struct sp_criu_restore {
    const char *criu, *folder, *run_dir;
    const char *name;         /* for messages */
    struct sp_cgroup *cgroup; /* the new, empty one that the processes are to be in */
    uint32_t uid;             /* of root inside */
    int *root_fd, *dev_fd, *cgroup_fd, *oom_fd; /* those that are used are taken: -1 then */
};
/* Starts the processes again as children of the launcher; *ret_pidfd is the caller's. On failure
 * some may be left in the cgroup. */
bool sp_criu_restore(struct sp_launcher *launcher, struct sp_criu_restore *what, pid_t *ret_pid,
                     int *ret_pidfd, GError **error);

/* --- criu_groups.c: the agent's cgroups below the sandbox's --- */

/* Notes the processes of every group below, by their number inside. */
bool sp_criu_groups_note(const struct sp_cgroup *cgroup, GKeyFile *facts, GError **error);
/* Makes the groups again and puts the restored processes into them. */
bool sp_criu_groups_restore(struct sp_cgroup *cgroup, GKeyFile *facts, uint32_t uid,
                            GError **error);

/* --- criu_trial.c --- */

/* Tries a dump and a restore of a small sandbox out, in a thread of its own; the result is kept for
 * this boot and this program. Does nothing when that has begun. */
void sp_criu_trial_begin(struct sp_container_driver *driver);
/* Ends the trial's thread. */
void sp_criu_trial_end(struct sp_container_driver *driver);
/* The program to use, or NULL with SP_ERROR_UNSUPPORTED, saying what to do, and
 * SP_ERROR_UNAVAILABLE while it is not known yet. wait_ms: at most. Free with g_free(). */
char *sp_criu_trial_result(struct sp_container_driver *driver, int wait_ms, GError **error);
