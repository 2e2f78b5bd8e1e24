/*
 * HOLD and RELEASE: the user processes stand still while the machine is saved, and go on either as
 * who they were (RELEASE) or as somebody else (IDENTITY). See docs/agent-protocol.md section 3.
 *
 * They are frozen by cgroup.freeze (cgroup v2, since Linux 5.2): in a microVM the group of all user
 * processes, in a container every session's group. A frozen process keeps no lock of the kernel,
 * can be killed, and handles no signal before it is thawed.
 */
#pragma once

#include "agent.h"

/* Whether HOLD can stand the processes still here. */
bool hold_can_freeze(const struct agent *a);
/* HOLD; queues the answer. Blocks until the freeze is complete, the message's timeout at most, and
 * then, when asked, until the file systems are written back. Held afterwards or as before, never in
 * between. */
void hold_begin(struct agent *a, uint32_t tag, const struct sp_msg_hold *m);
/* RELEASE; queues the answer. */
void hold_release(struct agent *a, uint32_t tag, const struct sp_msg_release *m);
/* Lets the processes go on. false: a group could not be thawed; they count as held then. */
bool hold_thaw(struct agent *a);
