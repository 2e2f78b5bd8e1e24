/*
 * The events of a command as server-sent events (docs/openapi.yaml, the attach route): pure text.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#include "node/link.h"

/* Largest text of an event beside its data or message, bytes. */
#define SP_EVENT_TEXT_OVERHEAD 512u

/* Upper bound of what sp_event_text() writes for the event, bytes. */
size_t sp_event_text_max(const struct sp_link_event *event);
/* Writes the whole event ("id: …\nevent: …\ndata: {…}\n\n"); there must be room for
 * sp_event_text_max(). Returns the number of bytes. */
size_t sp_event_text(const struct sp_link_event *event, char *buffer);
/* The events that the worker makes itself, into a string. id 0: none. */
void sp_event_text_resync(GString *out, uint64_t id, uint64_t oldest_id);
void sp_event_text_suspended(GString *out);
void sp_event_text_error(GString *out, const char *code, const char *message);
