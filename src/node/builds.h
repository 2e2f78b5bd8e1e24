/*
 * Template builds that the server wants of this node: each in a thread of its own, its log posted
 * in pieces, its end reported until the server has taken it.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "node/node.h"

struct sp_builds *sp_builds_new(struct sp_node *node);
/* Starts those of the list [{id, recipe, …}] that are not known yet. */
void sp_builds_want(struct sp_builds *builds, json_t *list);
/* How many builds have been started. */
unsigned sp_builds_started(struct sp_builds *builds);
/* Keeps builds from starting, for work that none may meet, until sp_builds_release(). False: one
 * runs or has been started since sp_builds_started() said `started`, somebody else holds them, or
 * the worker stops. */
bool sp_builds_hold(struct sp_builds *builds, unsigned started);
void sp_builds_release(struct sp_builds *builds);
/* Cancels all and waits, also for who holds them, at most timeout_ms. False: one still runs, and
 * nothing may be freed. */
bool sp_builds_stop(struct sp_builds *builds, int64_t timeout_ms);
void sp_builds_free(struct sp_builds *builds);
