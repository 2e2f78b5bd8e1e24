/*
 * The record of a sandbox in its run directory: <run_dir>/instance.ini (GKeyFile).
 *
 * Written (temporary file + rename) before the resources it names are made, read by adopt() and
 * destroy(). Group [instance] is common to all tiers; a driver adds its own group, e.g. [microvm].
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <sys/types.h>

#define SP_RECORD_FILE "instance.ini"

struct sp_record {
    char *id;              /* "sbx_…" */
    char *tier;            /* "container" */
    char *template_digest; /* "sha256:…" */
    char *boot_id;         /* /proc/sys/kernel/random/boot_id when it was made */
    char *cgroup;          /* name under the installation's group, NULL before it is planned */
    unsigned slot;
    bool started;            /* false: an intent; the sandbox may be half made */
    pid_t pid;               /* host pid of the first process; 0 before it started */
    guint64 pid_start_ticks; /* /proc/<pid>/stat field 22 (proc(5)): tells a reused pid */
    GKeyFile *extra;         /* owned, may be NULL: the driver's own groups */
};

/* true and *ret filled, or false with SP_ERROR_NOT_FOUND when there is no record file. */
bool sp_record_load(const char *run_dir, struct sp_record *ret, GError **error);
bool sp_record_save(const char *run_dir, const struct sp_record *record, GError **error);
void sp_record_clear(struct sp_record *record);

/* Fills boot_id, pid and pid_start_ticks of a process that runs now. */
bool sp_record_set_process(struct sp_record *record, pid_t pid, GError **error);

/* A pidfd of the recorded process if it is alive and provably the same one (boot id and start
 * time); -1 with SP_ERROR_NOT_FOUND when it provably is not, or -1 with another error when unknown.
 */
int sp_record_open_process(const struct sp_record *record, GError **error);
