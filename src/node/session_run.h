/* Starting the command of a session in its sandbox, and reading its events. */
#pragma once

#include "node/sessions.h"
#include "node/table.h"

/* Largest time that starting and subscribing may take. */
#define SP_SESSION_OPEN_MS 30000

/* Starts the command if it has not been started yet and subscribes behind after_event. NULL on
 * failure. */
struct sp_link_sub *sp_session_open(struct sp_node *node, struct sp_session *session,
                                    const struct sp_sandbox_use *use, uint64_t after_event,
                                    GError **error);
/* Starts the command if it has not been started yet, without reading its events. */
bool sp_session_start(struct sp_node *node, struct sp_session *session,
                      const struct sp_sandbox_use *use, GError **error);
/* Asks the agent about a session that runs as far as is known, and takes in its end. */
void sp_session_look(struct sp_node *node, struct sp_session *session);
