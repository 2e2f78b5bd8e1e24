/*
 * What /proc says about processes: numbers for PROCESSES, and the tree of a session where there are
 * no cgroups. Every read is bounded.
 */
#pragma once

#include "agent.h"

struct procs_stat {
    pid_t pid, parent, session;
    uint64_t cpu_ms;
    uint64_t start_ms; /* CLOCK_BOOTTIME */
    uint64_t rss_bytes;
    bool zombie;
};

/* Reads /proc/<pid>/stat. false: no such process, or nothing that can be understood. */
bool procs_read(pid_t pid, struct procs_stat *ret);
/* Parses the text of such a file (pure). */
bool procs_parse(const char *text, struct procs_stat *ret);

/* Whether the real, effective and saved user of a process are all uid. */
bool procs_runs_as(pid_t pid, uid_t uid);
/* The same, from the text of /proc/<pid>/status (pure). */
bool procs_status_is_user(const char *text, uid_t uid);

/* Signals the leader (if alive), its descendants and the processes of the kernel session `leader`.
 * Returns how many were signalled. */
int procs_signal_session(pid_t leader, bool leader_alive, int signal);

/* PROCESSES: queues the answer. */
void procs_reply(struct agent *a, uint32_t tag);
