/*
 * ^C and termination of a client verb.
 *
 * A thread of its own waits for SIGINT, SIGTERM and SIGHUP (those that the caller of `space` does
 * not have ignored). The first SIGINT is forwarded to the command while one runs; every other
 * signal cancels: the verb cleans up and leaves with 128 + signal.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>

#include "os/cleanup.h"

struct sp_interrupt;

/* Blocks the signals in the calling thread (so call it before other threads exist) and starts the
 * thread. */
struct sp_interrupt *sp_interrupt_start(void);
void sp_interrupt_stop(struct sp_interrupt *interrupt);
SP_DEFINE_CLEANUP(struct sp_interrupt, sp_interrupt_stop)

/* fn is called, in the signal thread, for the first SIGINT from now on; NULL takes it back (and
 * waits for a call that is under way). fn must return within seconds. */
void sp_interrupt_forward(struct sp_interrupt *interrupt, void (*fn)(void *user), void *user);
/* Thread-safe. The argument is a struct sp_interrupt *, so that it fits struct sp_client_cancel. */
bool sp_interrupt_cancelled(void *interrupt);
/* The signal that cancelled; 0: none. */
int sp_interrupt_signal(const struct sp_interrupt *interrupt);
/* Readable (poll(2)) once cancelled. Borrowed. */
int sp_interrupt_fd(const struct sp_interrupt *interrupt);
