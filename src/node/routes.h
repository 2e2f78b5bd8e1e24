/* The routes of the worker's listener; the struct sp_node is their user. */
#pragma once

#include "http/server.h"

extern const struct sp_http_route sp_node_routes[];
