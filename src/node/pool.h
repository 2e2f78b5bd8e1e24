/*
 * Warm pools (docs/pools.md): sandboxes without an owner, made ahead, one pool for each key =
 * template digest + tier + shape. A create takes a member, which becomes the sandbox.
 *
 * A member is made by the same steps as a sandbox, under a throw-away identity, and only one that
 * has run a command is ever claimed. Members live in <state>/run/pool/<name>; they never outlive
 * their worker: a new one destroys what it finds there.
 *
 * One struct with one lock owns keys and members; the lock is a leaf (no other lock is taken under
 * it) and is not held across I/O.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "node/making.h"
#include "node/node.h"

struct sp_pool;

/* Reads what an earlier worker has left in run/pool and keeps its slots from being used. Before
 * sandboxes are made; the drivers exist. */
struct sp_pool *sp_pool_new(struct sp_node *node);
/* Starts the thread that removes left-overs and then fills. */
void sp_pool_start(struct sp_pool *pool);
/* Makes no more members and destroys all, at most timeout_ms. False: something is still at work,
 * and nothing may be freed; what is left is for the next worker. */
bool sp_pool_stop(struct sp_pool *pool, int64_t timeout_ms);
void sp_pool_free(struct sp_pool *pool);

/* Around each create, pooled or not: counts the demand, and fills wait while creates are under
 * way. ended: made says whether it came to run, which is what makes its key worth a pool. */
void sp_pool_create_began(struct sp_pool *pool, const struct sp_sandbox_spec *spec);
void sp_pool_create_ended(struct sp_pool *pool, const struct sp_sandbox_spec *spec, bool made);

/* Turns a member into the sandbox that `making` names (sp_making_template() was called; its run_dir
 * is not there yet): on success the run directory is there and marked ready, and making has slot,
 * instance and link. False: there is no member that works, nothing of it is left in the sandbox's
 * name, and the sandbox is to be made anew. The slot passes to the caller. */
bool sp_pool_claim(struct sp_pool *pool, struct sp_making *making);

/* Destroys the members of a template that is about to be removed, and makes no more. False: not
 * all are gone yet. */
bool sp_pool_forget_template(struct sp_pool *pool, const char *digest, GError **error);

/* Around create() of a driver, whoever calls it: what was started ahead may be taken meanwhile.
 * Before it ends, sp_pool_vmm_taken() has said so. NULL pool: nothing happens. */
void sp_pool_making(struct sp_pool *pool, bool begins);
/* A create or a wake has taken the VMM that was started ahead with this slot: the slot is the
 * sandbox's now. NULL pool: nothing happens. */
void sp_pool_vmm_taken(struct sp_pool *pool, unsigned slot);

/* [{template_digest, isolation, cpus, memory_mb, disk_mb, pids, ready, filling, low, high, hits,
 * misses}] */
json_t *sp_pool_to_json(struct sp_pool *pool);
/* Names of all members, also of half-made ones; free with g_strfreev(). */
char **sp_pool_names(struct sp_pool *pool);
