#include "wire/sse.h"

#include <string.h>

void sp_sse_append(GString *out, uint64_t id, const char *type, const char *data, gsize data_len)
{
    if (id > 0)
        g_string_append_printf(out, "id: %" G_GUINT64_FORMAT "\n", id);
    g_string_append_printf(out, "event: %s\ndata: ", type);
    g_string_append_len(out, data, (gssize)data_len);
    g_string_append(out, "\n\n");
}

enum sse_state {
    SSE_START,   /* nothing seen yet: a byte order mark may come */
    SSE_LINE,    /* collecting a line */
    SSE_COMMENT, /* dropping a line */
    SSE_FAILED,  /* too long, or stopped by the reader */
};

struct sp_sse_parser {
    enum sse_state state;
    bool after_cr; /* a LF that comes next belongs to the line end before */
    gsize max_event_bytes;
    GString *line;
    GString *data;
    bool has_data; /* a data field came, maybe an empty one */
    GString *type;
    GString *id; /* goes on to the events that follow */
};

struct sp_sse_parser *sp_sse_parser_new(gsize max_event_bytes)
{
    struct sp_sse_parser *parser = g_new0(struct sp_sse_parser, 1);
    parser->max_event_bytes = max_event_bytes;
    parser->line = g_string_new(NULL);
    parser->data = g_string_new(NULL);
    parser->type = g_string_new(NULL);
    parser->id = g_string_new(NULL);
    return parser;
}

void sp_sse_parser_free(struct sp_sse_parser *parser)
{
    if (!parser)
        return;
    g_string_free(parser->line, TRUE);
    g_string_free(parser->data, TRUE);
    g_string_free(parser->type, TRUE);
    g_string_free(parser->id, TRUE);
    g_free(parser);
}

typedef bool (*sse_fn)(void *user, const struct sp_sse_event *event);

static bool dispatch(struct sp_sse_parser *parser, sse_fn fn, void *user)
{
    bool go_on = true;
    if (parser->has_data) {
        const struct sp_sse_event event = {
            .id = parser->id->str,
            .type = parser->type->len ? parser->type->str : "message",
            .data = parser->data->str,
            .data_len = parser->data->len,
        };
        go_on = fn(user, &event);
    }
    parser->has_data = false;
    g_string_truncate(parser->data, 0);
    g_string_truncate(parser->type, 0);
    return go_on;
}

static void take_field(struct sp_sse_parser *parser, const char *name, gsize name_len,
                       const char *value, gsize value_len)
{
    if (name_len == 4 && memcmp(name, "data", 4) == 0) {
        if (parser->has_data)
            g_string_append_c(parser->data, '\n');
        parser->has_data = true;
        g_string_append_len(parser->data, value, (gssize)value_len);
    } else if (name_len == 5 && memcmp(name, "event", 5) == 0) {
        g_string_truncate(parser->type, 0);
        /* A type is a C string for the caller; one with a NUL equals no known type. */
        g_string_append_len(parser->type, value, (gssize)value_len);
    } else if (name_len == 2 && memcmp(name, "id", 2) == 0 && !memchr(value, '\0', value_len)) {
        g_string_truncate(parser->id, 0);
        g_string_append_len(parser->id, value, (gssize)value_len);
    }
    /* "retry" and unknown fields are ignored: whoever reconnects has its own schedule. */
}

static bool end_line(struct sp_sse_parser *parser, sse_fn fn, void *user)
{
    const GString *line = parser->line;
    if (parser->state == SSE_COMMENT) {
        parser->state = SSE_LINE;
        return true;
    }
    if (line->len == 0)
        return dispatch(parser, fn, user);
    const char *colon = memchr(line->str, ':', line->len);
    const gsize name_len = colon ? (gsize)(colon - line->str) : line->len;
    const char *value = colon ? colon + 1 : line->str + line->len;
    gsize value_len = (gsize)(line->str + line->len - value);
    if (value_len > 0 && value[0] == ' ') {
        value++;
        value_len--;
    }
    take_field(parser, line->str, name_len, value, value_len);
    g_string_truncate(parser->line, 0);
    return true;
}

/* Appends a piece of a line without its end; false when the event gets too long. */
static bool take_piece(struct sp_sse_parser *parser, const char *bytes, gsize len)
{
    if (parser->state == SSE_COMMENT || len == 0)
        return true;
    if (parser->state == SSE_LINE && parser->line->len == 0 && bytes[0] == ':') {
        parser->state = SSE_COMMENT;
        return true;
    }
    const gsize held = parser->line->len + parser->data->len + parser->type->len + parser->id->len;
    if (len > parser->max_event_bytes || held > parser->max_event_bytes - len)
        return false;
    g_string_append_len(parser->line, bytes, (gssize)len);
    return true;
}

/* Drops a byte order mark at the very start, which may come in pieces. Returns how many bytes of
 * the input it took. */
static gsize take_start(struct sp_sse_parser *parser, const char *bytes, gsize len)
{
    static const char mark[] = "\xef\xbb\xbf";
    gsize used = 0;
    while (used < len && parser->line->len < 3 && bytes[used] == mark[parser->line->len])
        g_string_append_c(parser->line, bytes[used++]);
    if (parser->line->len == 3)
        g_string_truncate(parser->line, 0);
    else if (used == len)
        return used;
    parser->state = SSE_LINE;
    return used;
}

bool sp_sse_parser_feed(struct sp_sse_parser *parser, const char *bytes, gsize len,
                        bool (*fn)(void *user, const struct sp_sse_event *event), void *user)
{
    gsize at = 0;
    if (parser->state == SSE_START)
        at = take_start(parser, bytes, len);
    while (at < len && parser->state != SSE_FAILED) {
        if (parser->after_cr) {
            parser->after_cr = false;
            if (bytes[at] == '\n') {
                at++;
                continue;
            }
        }
        gsize end = at;
        while (end < len && bytes[end] != '\n' && bytes[end] != '\r')
            end++;
        if (!take_piece(parser, bytes + at, end - at)) {
            parser->state = SSE_FAILED;
            break;
        }
        if (end < len) {
            parser->after_cr = bytes[end] == '\r';
            if (!end_line(parser, fn, user))
                parser->state = SSE_FAILED;
            end++;
        }
        at = end;
    }
    return parser->state != SSE_FAILED;
}
