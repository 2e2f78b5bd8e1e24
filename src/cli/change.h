/* Changes of a sandbox's life as the verbs ask for them: sent, followed to their end, read again.
 */
#pragma once

#include <jansson.h>

#include "cli/client.h"

/* POSTs `body` (borrowed; NULL: {}) to a path that answers with an operation, and waits for its end
 * (30 min at most, as the server does). The answer with the operation as it ended, and with
 * `object`
 * ("sandbox", "snapshot") read again when the answer could not wait. NULL with the operation's own
 * error. Blocks. */
json_t *sp_change_call(struct sp_client *api, const char *path, json_t *body, const char *object,
                       GError **error);
/* The same when the request's method is another. */
json_t *sp_change_request(struct sp_client *api, const char *method, const char *path, json_t *body,
                          const char *object, GError **error);

/* Waits for an answer's operation and puts what has become of it, and of its object, in their
 * places. */
bool sp_change_follow(struct sp_client *api, json_t *answer, const char *object, GError **error);

/* "snp_…" of a snapshot's id or name. SP_ERROR_NOT_FOUND; SP_ERROR_CONFLICT when two have the name.
 * Free with g_free(). */
char *sp_change_resolve_snapshot(struct sp_client *api, const char *id_or_name, GError **error);
