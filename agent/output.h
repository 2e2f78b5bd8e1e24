/*
 * Output of a session: its pipes (or terminal) into its ring, with block or drop when it is full.
 */
#pragma once

#include "agent.h"

struct session;

/* Starts watching what out_fd holds. false: no memory for it. */
bool output_watch(struct agent *a, struct session *s);
/* Takes what a stream (0 stdout, 1 stderr) holds, as far as there is room. */
void output_read(struct agent *a, struct session *s, unsigned stream);
/* The ring has room again. */
void output_resume(struct agent *a, struct session *s);
bool output_is_open(const struct session *s);
/* From now on only what the pipes hold at this moment is taken, as fast as the reader allows; then
 * they are closed. */
void output_cut(struct agent *a, struct session *s);
void output_close(struct session *s);
/* Records what was dropped and not yet told. */
void output_flush_dropped(struct session *s);
