/* The table of requests: decodes a frame's payload and calls the module that serves it. */
#pragma once

#include "agent.h"

/* Serves one frame (never HELLO). Queues at most one answer. */
void request_handle(struct agent *a, const struct sp_frame_header *header, const uint8_t *payload);
