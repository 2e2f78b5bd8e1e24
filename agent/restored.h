/*
 * How programs learn that they are a restored copy: /run/space, see docs/restore-hooks.md.
 *
 * /run/space/restored/<pid> asks for a signal after a restore; /run/space/generation counts the
 * restores and holds a random id. The directory is open to every process of the sandbox: its names
 * and contents are hostile, and every walk through it is bounded.
 */
#pragma once

#include "agent.h"

/* Makes the directory and the first generation. Best effort: without a writable /run there are no
 * hooks. */
void restored_init(struct agent *a);

/* Sets CLOCK_REALTIME. The times of the registrations move with it, since they are compared with
 * the start of processes. false: refused, errno says why. */
bool restored_set_clock(struct agent *a, uint64_t realtime_ns);
/* Moves the time of every registration. */
void restored_move_times(struct agent *a, int64_t delta_ns);

/* Removes registrations of processes that are gone. */
void restored_prune(struct agent *a);
/* Sends every registered process its signal. */
void restored_signal(struct agent *a);
/* Writes a new random id, and one restore more when `count`. Call after the entropy. */
void restored_new_generation(struct agent *a, bool count);

/* A file's name as a process id; 0: it is none (pure). */
pid_t restored_parse_name(const char *name);
/* A file's content as a signal number, SIGUSR2 when it is empty; 0: it is none (pure). */
int restored_parse_signal(const char *text, size_t len);
