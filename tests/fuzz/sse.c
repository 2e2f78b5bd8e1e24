/*
 * libFuzzer target of the SSE parser. The first byte says where to split the rest; both ways of
 * feeding must give the same events. Build and run:
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -Isrc $(pkg-config --cflags glib-2.0) \
 *     tests/fuzz/sse.c src/wire/sse.c $(pkg-config --libs glib-2.0) -o fuzz-sse && ./fuzz-sse
 */
#include "wire/sse.h"

#include <stddef.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static bool note(void *user, const struct sp_sse_event *event)
{
    g_string_append_printf(user, "%s|%s|", event->id, event->type);
    g_string_append_len(user, event->data, (gssize)event->data_len);
    return true;
}

static bool parse(const char *text, gsize len, gsize step, GString *ret)
{
    struct sp_sse_parser *parser = sp_sse_parser_new(64);
    bool ok = true;
    for (gsize at = 0; at < len; at += step)
        ok = sp_sse_parser_feed(parser, text + at, MIN(step, len - at), note, ret);
    sp_sse_parser_free(parser);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    if (len < 2)
        return 0;
    g_autoptr(GString) whole = g_string_new(NULL);
    g_autoptr(GString) pieces = g_string_new(NULL);
    const char *text = (const char *)bytes + 1;
    const bool whole_ok = parse(text, len - 1, len - 1, whole);
    const bool pieces_ok = parse(text, len - 1, bytes[0] % 16u + 1, pieces);
    /* A long line fails at another byte when it comes in pieces, but never passes one way only. */
    if (whole_ok != pieces_ok || (whole_ok && !g_string_equal(whole, pieces)))
        __builtin_trap();
    return 0;
}
