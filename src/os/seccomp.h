/*
 * The system call filter of containers (seccomp(2), libseccomp).
 *
 * Everything is allowed but: a list of calls that reach the kernel's rarely used or host-wide parts
 * (EPERM), new namespaces, unusual socket families (EAFNOSUPPORT), and every call that is newer
 * than this list was reviewed for (ENOSYS, as on an older kernel). Other architectures' calls end
 * the process. clone3 stays allowed for the agent, which refuses it to its children (its flags
 * cannot be seen by a filter).
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>

/* Builds the filter and writes its BPF program to a sealed memfd (array of struct sock_filter),
 * close-on-exec. About 10 ms: once at start. -1 on failure. */
int sp_seccomp_container_new(GError **error);
