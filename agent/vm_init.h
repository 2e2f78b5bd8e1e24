/*
 * The microVM tier: from /init of the initramfs to the root of the sandbox. See
 * docs/agent-protocol.md section 7.
 */
#pragma once

#include "agent.h"

/* Loads modules, mounts, enters the new root. Returns the agent's virtio port, open and
 * non-blocking; ends the machine on failure. Sets cgroup_fd, has_memory_controller, random_fd. */
int vm_init(struct agent *a);
_Noreturn void vm_power_off(void);
