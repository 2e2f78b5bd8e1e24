/*
 * Server-sent events (WHATWG HTML, "Server-sent events"): writing events, and an incremental
 * bounded parser for clients. Pure functions on bytes.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

/* Appends "id: <n>\nevent: <type>\ndata: <data>\n\n". data must hold no newline. id 0: no id line.
 */
void sp_sse_append(GString *out, uint64_t id, const char *type, const char *data, gsize data_len);

struct sp_sse_parser;
struct sp_sse_event {
    const char *id; /* borrowed until the next feed; "" when none was seen yet */
    const char *type;
    const char *data;
    gsize data_len;
};
/* max_event_bytes bounds one event. */
struct sp_sse_parser *sp_sse_parser_new(gsize max_event_bytes);
void sp_sse_parser_free(struct sp_sse_parser *parser);
/* Feeds bytes; fn is called for each whole event, false from it stops and makes feed return false.
 * Also false when an event is longer than the maximum. */
bool sp_sse_parser_feed(struct sp_sse_parser *parser, const char *bytes, gsize len,
                        bool (*fn)(void *user, const struct sp_sse_event *event), void *user);
