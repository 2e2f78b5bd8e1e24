#include "wire/sse.h"

#include <string.h>

/* Each event becomes "id|type|data;" here. */
static bool note(void *user, const struct sp_sse_event *event)
{
    g_string_append_printf(user, "%s|%s|", event->id, event->type);
    g_string_append_len(user, event->data, (gssize)event->data_len);
    g_string_append_c(user, ';');
    return true;
}

static void assert_parses(const char *text, gsize len, const char *expected)
{
    /* Whole, split in two at every place, and byte by byte. */
    for (gsize split = 0; split <= len + 1; split++) {
        struct sp_sse_parser *parser = sp_sse_parser_new(4096);
        g_autoptr(GString) got = g_string_new(NULL);
        if (split <= len) {
            g_assert_true(sp_sse_parser_feed(parser, text, split, note, got));
            g_assert_true(sp_sse_parser_feed(parser, text + split, len - split, note, got));
        } else {
            for (gsize i = 0; i < len; i++)
                g_assert_true(sp_sse_parser_feed(parser, text + i, 1, note, got));
        }
        g_assert_cmpstr(got->str, ==, expected);
        sp_sse_parser_free(parser);
    }
}

static void test_streams(void)
{
    static const struct {
        const char *text, *expected;
    } rows[] = {
        {"data: a\n\n", "|message|a;"},
        {"id: 7\nevent: stdout\ndata: {\"x\":1}\n\nevent: end\ndata: b\n\n",
         "7|stdout|{\"x\":1};7|end|b;"},
        {"data: a\r\n\r\ndata: b\r\n\r\n", "|message|a;|message|b;"},
        {"data: a\r\rdata: b\r\r", "|message|a;|message|b;"},
        {"data: a\r\n\rdata: b\n\r", "|message|a;|message|b;"},
        {"data: one\ndata: two\ndata\ndata:\ndata: five\n\n", "|message|one\ntwo\n\n\nfive;"},
        {": keep-alive\n\ndata: a\n: in between\ndata: b\n\n:\n\n", "|message|a\nb;"},
        {"data:no blank\ndata:  two blanks\n\n", "|message|no blank\n two blanks;"},
        {"data\n\n", "|message|;"},
        {"event: nothing\n\ndata: x\n\n", "|message|x;"},
        {"id: 1\n\ndata: a\n\nid\ndata: b\n\n", "1|message|a;|message|b;"},
        {"retry: 10\nunknown: z\ndatax: 1\nDATA: 2\ndata: a\n\n", "|message|a;"},
        {"\xef\xbb\xbf"
         "data: a\n\n",
         "|message|a;"},
        {"\xef\xbb\n\ndata: a\n\n", "|message|a;"},
        {"data: a\n\n\xef\xbb\xbf"
         "data: b\n\n",
         "|message|a;"},
        {"data: unfinished\n", ""},
        {"data: unfinished", ""},
        {"\n\n\r\r\n", ""},
        {"data: a:b: c\n\n", "|message|a:b: c;"},
        {" data: a\n\n", ""},
    };
    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++)
        assert_parses(rows[i].text, strlen(rows[i].text), rows[i].expected);
    assert_parses("id: a\0b\ndata: x\n\n", 17, "|message|x;");
}

static void test_own_events_come_back(void)
{
    g_autoptr(GString) stream = g_string_new(NULL);
    sp_sse_append(stream, 1, "stdout", "{\"data\":\"x\"}", 12);
    sp_sse_append(stream, 0, "ping", "", 0);
    sp_sse_append(stream, G_MAXUINT64, "end", "{}", 2);
    g_assert_cmpstr(stream->str, ==,
                    "id: 1\nevent: stdout\ndata: {\"data\":\"x\"}\n\n"
                    "event: ping\ndata: \n\n"
                    "id: 18446744073709551615\nevent: end\ndata: {}\n\n");
    assert_parses(stream->str, stream->len,
                  "1|stdout|{\"data\":\"x\"};1|ping|;18446744073709551615|end|{};");
}

static void test_bounds(void)
{
    g_autofree char *fill = g_strnfill(300, 'x');
    static const struct {
        const char *before;
        bool repeat; /* "before" itself, again and again */
        bool ok;
    } rows[] = {
        {"data: ", false, false},
        {"event: ", false, false},
        {"id: ", false, false},
        {"data: xxxxxxxxx\n", true, false},
        {"", false, false},
        {": ", false, true},
        {": xx\n", true, true},
        {"data: xxxxx\n\n", true, true},
        {"id: 1234567\n", true, true},
        {"event: 1234567\n", true, true},
    };
    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct sp_sse_parser *parser = sp_sse_parser_new(100);
        g_autoptr(GString) got = g_string_new(NULL);
        bool ok = sp_sse_parser_feed(parser, rows[i].before, strlen(rows[i].before), note, got);
        for (int k = 0; k < 100 && ok; k++)
            ok = rows[i].repeat
                     ? sp_sse_parser_feed(parser, rows[i].before, strlen(rows[i].before), note, got)
                     : sp_sse_parser_feed(parser, fill, 3, note, got);
        if (ok != rows[i].ok)
            g_error("row %" G_GSIZE_FORMAT ": %d", i, ok);
        /* Once failed, always failed. */
        if (!ok)
            g_assert_false(sp_sse_parser_feed(parser, "\n\ndata: a\n\n", 11, note, got));
        sp_sse_parser_free(parser);
    }
}

static bool stop_at_once(void *user, const struct sp_sse_event *event)
{
    (*(int *)user)++;
    return false;
}

static void test_stop(void)
{
    int calls = 0;
    struct sp_sse_parser *parser = sp_sse_parser_new(100);
    g_assert_false(sp_sse_parser_feed(parser, "data: a\n\ndata: b\n\n", 18, stop_at_once, &calls));
    g_assert_false(sp_sse_parser_feed(parser, "data: c\n\n", 9, stop_at_once, &calls));
    g_assert_cmpint(calls, ==, 1);
    sp_sse_parser_free(parser);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/sse/streams", test_streams);
    g_test_add_func("/sse/own_events_come_back", test_own_events_come_back);
    g_test_add_func("/sse/bounds", test_bounds);
    g_test_add_func("/sse/stop", test_stop);
    return g_test_run();
}
