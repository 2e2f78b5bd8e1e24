/* The reports about sandboxes, as docs/worker-protocol.md has them. With the table's lock held. */
#pragma once

#include <jansson.h>

#include "node/table.h"

/* {id, generation, state, …}; what the presence says. */
json_t *sp_observe(const struct sp_sandbox *sandbox, int64_t generation);
/* The same with the steps of the action that has brought it there; the reference is not taken. */
json_t *sp_observe_steps(const struct sp_sandbox *sandbox, int64_t generation, json_t *steps);
/* The change has failed, with the sandbox's fail_code and fail_message, and it is (still) as its
 * presence says. */
json_t *sp_observe_failed(const struct sp_sandbox *sandbox, int64_t generation, json_t *steps);
/* A state that is told apart from the presence. Texts may be NULL; steps' reference is not taken.
 */
json_t *sp_observe_state(const struct sp_sandbox *sandbox, int64_t generation, enum sp_state state,
                         const char *reason, const char *code, const char *message, json_t *steps);
