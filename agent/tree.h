/*
 * All processes of a session: a cgroup of its own where the agent has one to make it in, else the
 * processes found in /proc (descendants of the leader, and those of its kernel session).
 */
#pragma once

#include "agent.h"

struct session;

/* Makes a group. Returns a directory descriptor (O_PATH) and its number; -1 and 0 without. */
int tree_create(struct agent *a, uint64_t *ret_number);
void tree_signal(struct agent *a, const struct session *s, int signal);
/* SIGKILL to everything, forks under way included. */
void tree_kill(struct agent *a, const struct session *s);
/* Removes a group; false: it still has processes. */
bool tree_remove(const struct agent *a, uint64_t number);
/* The session of this group is forgotten: removes the group now, or in tree_tidy when it is empty.
 */
void tree_leave(struct agent *a, uint64_t number);
void tree_tidy(struct agent *a);
/* OOM kills in the sandbox (oom-fd) so far; 0 when not known. */
uint64_t tree_oom_count(const struct agent *a);
/* Whether the kernel killed something in the session's group for want of memory. */
bool tree_group_oom(const struct agent *a, uint64_t number);
/* Most memory the group ever had; 0: not known. */
uint64_t tree_peak_bytes(const struct agent *a, uint64_t number);
