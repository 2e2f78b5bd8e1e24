/* The requests of the server to the worker (docs/worker-protocol.md), but exec. user is the struct
 * sp_node. */
#pragma once

#include "http/server.h"

/* The node key. */
bool sp_node_authorize(struct sp_http_request *request, void *user, GError **error);
void sp_node_session_start(struct sp_http_request *request, void *user);
void sp_node_session_get(struct sp_http_request *request, void *user);
void sp_node_processes(struct sp_http_request *request, void *user);
void sp_node_inventory(struct sp_http_request *request, void *user);
void sp_node_process_signal(struct sp_http_request *request, void *user);
