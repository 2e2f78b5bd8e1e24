/* Processes by pidfd (pidfd_open(2), pidfd_send_signal(2)) and their start time (proc(5)). */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A pidfd, close-on-exec. -1 with SP_ERROR_NOT_FOUND when there is no such process, else
 * SP_ERROR_INTERNAL. */
int sp_pidfd_open(pid_t pid, GError **error);
/* True also when the process has ended already. */
bool sp_pidfd_signal(int pidfd, int signal, GError **error);
/* Whether the process ended within timeout_ms (0: only look). Works for processes that are not
 * children. */
bool sp_pidfd_wait(int pidfd, int timeout_ms);
/* SIGKILL and wait. SP_ERROR_INTERNAL when it still runs after timeout_ms. */
bool sp_pidfd_kill(int pidfd, int timeout_ms, GError **error);
/* Field 22 of /proc/<pid>/stat, clock ticks after boot: with the pid and the boot id it names a
 * process for ever. SP_ERROR_NOT_FOUND when there is no such process. */
bool sp_process_start_ticks(pid_t pid, uint64_t *ret_ticks, GError **error);
