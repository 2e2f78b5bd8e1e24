#include "node/event_text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "wire/sse.h"

static const char base64_digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static char *put_text(char *at, const char *text)
{
    size_t len = strlen(text);
    memcpy(at, text, len);
    return at + len;
}

static char *put_base64(char *at, const uint8_t *bytes, size_t len)
{
    const uint8_t *end = bytes + len / 3 * 3;
    for (; bytes < end; bytes += 3, at += 4) {
        uint32_t v = (uint32_t)bytes[0] << 16 | (uint32_t)bytes[1] << 8 | bytes[2];
        at[0] = base64_digits[v >> 18];
        at[1] = base64_digits[v >> 12 & 63];
        at[2] = base64_digits[v >> 6 & 63];
        at[3] = base64_digits[v & 63];
    }
    size_t left = len % 3;
    if (left == 0)
        return at;
    uint32_t v = (uint32_t)bytes[0] << 16 | (left == 2 ? (uint32_t)bytes[1] << 8 : 0);
    at[0] = base64_digits[v >> 18];
    at[1] = base64_digits[v >> 12 & 63];
    at[2] = left == 2 ? base64_digits[v >> 6 & 63] : '=';
    at[3] = '=';
    return at + 4;
}

/* Many JSON readers take nothing above 2^63 - 1; what an agent says can be anything. */
static uint64_t limited(uint64_t value)
{
    return MIN(value, (uint64_t)INT64_MAX);
}

static char *put_number(char *at, uint64_t value)
{
    return at + snprintf(at, 24, "%" PRIu64, limited(value));
}

static const char *type_name(uint8_t kind)
{
    switch (kind) {
    case SP_EVENT_STARTED:
        return "started";
    case SP_EVENT_STDOUT:
        return "stdout";
    case SP_EVENT_STDERR:
        return "stderr";
    case SP_EVENT_DROPPED:
        return "dropped";
    case SP_EVENT_EXITED:
        return "process_exited";
    default:
        return "error";
    }
}

/* "code" or "message" of an error event as JSON text with quotes; malloc'ed. */
static char *json_quoted(const uint8_t *bytes, size_t len)
{
    g_autofree char *text = g_utf8_make_valid((const char *)bytes, (gssize)len);
    json_t *value = json_string(text);
    char *quoted = json_dumps(value, JSON_ENCODE_ANY);
    json_decref(value);
    return quoted;
}

static char *put_error(char *at, const struct sp_link_event *event)
{
    char *code = json_quoted(event->data, event->code_len);
    char *message = json_quoted(event->data + event->code_len, event->data_len - event->code_len);
    at = put_text(put_text(at, ",\"code\":"), code);
    at = put_text(put_text(at, ",\"message\":"), message);
    free(code);
    free(message);
    return at;
}

static char *put_exit(char *at, const struct sp_msg_exit *e)
{
    return at + snprintf(at, 400,
                         ",\"exit_code\":%" PRId32 ",\"signal\":%" PRId32
                         ",\"core_dumped\":%s,\"oom\":%s,\"timed_out\":%s,\"duration_ms\":%" PRIu64
                         ",\"cpu_ms\":%" PRIu64 ",\"peak_memory_bytes\":%" PRIu64
                         ",\"pipe_held_open\":%s",
                         e->exit_code, e->signal, e->flags & SP_EXIT_CORE_DUMPED ? "true" : "false",
                         e->flags & SP_EXIT_OOM ? "true" : "false",
                         e->flags & SP_EXIT_TIMED_OUT ? "true" : "false", e->duration_us / 1000,
                         e->cpu_us / 1000, limited(e->peak_memory_bytes),
                         e->flags & SP_EXIT_PIPE_HELD_OPEN ? "true" : "false");
}

size_t sp_event_text_max(const struct sp_link_event *event)
{
    switch (event->kind) {
    case SP_EVENT_STDOUT:
    case SP_EVENT_STDERR:
        return SP_EVENT_TEXT_OVERHEAD + ((size_t)event->data_len + 2) / 3 * 4;
    case SP_EVENT_ERROR: /* a byte can become \u00XX or U+FFFD */
        return SP_EVENT_TEXT_OVERHEAD + (size_t)event->data_len * 6;
    default:
        return SP_EVENT_TEXT_OVERHEAD;
    }
}

size_t sp_event_text(const struct sp_link_event *event, char *buffer)
{
    const char *type = type_name(event->kind);
    char *at = put_number(put_text(buffer, "id: "), event->id);
    at = put_text(put_text(at, "\nevent: "), type);
    at = put_text(put_text(at, "\ndata: {\"type\":\""), type);
    *at++ = '"';
    switch (event->kind) {
    case SP_EVENT_STARTED:
        at += snprintf(at, 32, ",\"pid\":%" PRId32, event->pid);
        break;
    case SP_EVENT_STDOUT:
    case SP_EVENT_STDERR:
        at = put_base64(put_text(at, ",\"data\":\""), event->data, event->data_len);
        *at++ = '"';
        break;
    case SP_EVENT_DROPPED:
        at = put_text(put_text(at, ",\"stream\":\""), type_name(event->dropped_stream));
        at = put_number(put_text(at, "\",\"bytes\":"), event->dropped_bytes);
        break;
    case SP_EVENT_EXITED:
        at = put_exit(at, &event->exit);
        break;
    default:
        at = put_error(at, event);
        break;
    }
    at = put_text(at, "}\n\n");
    return (size_t)(at - buffer);
}

void sp_event_text_resync(GString *out, uint64_t id, uint64_t oldest_id)
{
    char data[96];
    int len = snprintf(data, sizeof(data),
                       "{\"type\":\"resync_required\",\"oldest_id\":%" PRIu64 "}", oldest_id);
    sp_sse_append(out, id, "resync_required", data, (gsize)len);
}

void sp_event_text_suspended(GString *out)
{
    static const char data[] = "{\"type\":\"suspended\"}";
    sp_sse_append(out, 0, "suspended", data, strlen(data));
}

void sp_event_text_error(GString *out, const char *code, const char *message)
{
    g_autofree char *valid = g_utf8_make_valid(message, -1);
    json_t *value = json_pack("{s:s,s:s,s:s}", "type", "error", "code", code, "message", valid);
    char *data = json_dumps(value, JSON_COMPACT);
    sp_sse_append(out, 0, "error", data, strlen(data));
    free(data);
    json_decref(value);
}
