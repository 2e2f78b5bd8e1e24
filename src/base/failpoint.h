/*
 * Failpoints: places where a test can make the process fail or die (docs/failpoints.md).
 *
 * Off unless the environment variable SPACE_FAILPOINTS names a file at the start of the process;
 * then a call costs one read of a constant. The file is looked at at each place, so that a test can
 * write it while the process runs.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>

#define SP_FAILPOINTS_ENV "SPACE_FAILPOINTS"

/* True: nothing was asked for here, or only a delay. False: the failure that was asked for, as
 * SP_ERROR_UNAVAILABLE. May not return at all (kill, exit). `name` is "<action>.<step>", a literal
 * that stands at one place of the source only. error may be NULL. */
bool sp_failpoint(const char *name, GError **error);
