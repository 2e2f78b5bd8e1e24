/* GET /v1/attach/{session}/events: the events of a command as a stream of server-sent events. */
#pragma once

#include "http/server.h"

/* Handlers of the data plane; user is the struct sp_node. sp_attach_authorize() leaves the session
 * as the request's data. */
bool sp_attach_authorize(struct sp_http_request *request, void *user, GError **error);
void sp_attach_events(struct sp_http_request *request, void *user);
