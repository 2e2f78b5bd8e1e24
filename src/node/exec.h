/* POST /node/v1/sandboxes/{id}/exec: one command, waited for. user is the struct sp_node. */
#pragma once

#include "http/server.h"

void sp_exec(struct sp_http_request *request, void *user);
