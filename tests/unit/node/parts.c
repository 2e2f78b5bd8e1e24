/* The pure parts of the worker: slots, the brake, captured output, texts of events, names of
 * signals. */
#include <signal.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "node/brake.h"
#include "node/capture.h"
#include "node/event_text.h"
#include "node/lenient.h"
#include "node/signal_name.h"
#include "node/slots.h"

static void test_slots(void)
{
    g_autofree struct sp_slots *slots = g_new0(struct sp_slots, 1);
    g_autofree bool *seen = g_new0(bool, SP_SLOTS);
    g_assert_true(sp_slots_claim(slots, 3));
    g_assert_false(sp_slots_claim(slots, 3));
    g_assert_false(sp_slots_claim(slots, SP_SLOTS));
    seen[3] = true;
    for (unsigned i = 1; i < SP_SLOTS; i++) {
        int slot = sp_slots_take(slots);
        g_assert_cmpint(slot, >=, 0);
        g_assert_false(seen[slot]);
        seen[slot] = true;
    }
    g_assert_cmpint(sp_slots_take(slots), ==, -1);
    sp_slots_release(slots, 77);
    sp_slots_release(slots, 77);
    g_assert_cmpuint(slots->n_used, ==, SP_SLOTS - 1);
    g_assert_cmpint(sp_slots_take(slots), ==, 77);
}

/* A block of uids that was given back is not the next to be given out. */
static void test_slots_come_back_late(void)
{
    g_autofree struct sp_slots *slots = g_new0(struct sp_slots, 1);
    int first = sp_slots_take(slots);
    sp_slots_release(slots, (unsigned)first);
    g_assert_cmpint(sp_slots_take(slots), !=, first);
}

static void test_brake(void)
{
    const struct {
        unsigned found, allowed;
    } cases[] = {{0, 5}, {3, 5}, {9, 5}, {10, 5}, {12, 6}, {100, 50}};
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        struct sp_brake brake = {.found = cases[i].found};
        unsigned allowed = 0;
        while (allowed < 1000 && sp_brake_allows(&brake, 1000))
            allowed++;
        g_assert_cmpuint(allowed, ==, cases[i].allowed);
        g_assert_true(brake.holding);
        g_assert_false(sp_brake_allows(&brake, 1000 + SP_BRAKE_HOLD_MS - 1));
        g_assert_true(sp_brake_allows(&brake, 1000 + SP_BRAKE_HOLD_MS));
    }
}

static void check_capture(size_t max, size_t total, size_t piece)
{
    struct sp_capture capture;
    g_autofree uint8_t *all = g_malloc(total + 1);
    for (size_t i = 0; i < total; i++)
        all[i] = (uint8_t)(i % 127); /* no bytes that look like cut characters */
    sp_capture_init(&capture, max);
    for (size_t at = 0; at < total; at += piece)
        sp_capture_add(&capture, all + at, MIN(piece, total - at));
    size_t len, head_len;
    g_autofree uint8_t *kept = sp_capture_take(&capture, &len, &head_len);
    g_assert_cmpuint(capture.total, ==, total);
    if (total <= max) {
        g_assert_cmpmem(kept, len, all, total);
        g_assert_cmpuint(head_len, ==, total);
    } else {
        g_assert_cmpuint(len, ==, max);
        g_assert_cmpmem(kept, head_len, all, max / 2);
        g_assert_cmpmem(kept + head_len, len - head_len, all + total - max / 2, max / 2);
    }
    sp_capture_clear(&capture);
}

static void test_capture(void)
{
    for (size_t total = 0; total < 80; total++) {
        for (size_t piece = 1; piece < 50; piece += 3)
            check_capture(20, total, piece);
    }
}

/* Where something is cut out, no character is left in halves. */
static void test_capture_text(void)
{
    for (unsigned shift = 0; shift < 8; shift++) {
        struct sp_capture capture;
        g_autoptr(GString) text = g_string_new(NULL);
        for (unsigned i = 0; i < shift; i++)
            g_string_append_c(text, 'x');
        for (unsigned i = 0; i < 50; i++)
            g_string_append(text, i % 2 ? "☕" : "é😀");
        sp_capture_init(&capture, 64);
        sp_capture_add(&capture, text->str, text->len);
        g_autoptr(json_t) answer = json_object();
        g_autoptr(json_t) truncated = json_object();
        sp_capture_to_json(&capture, "stdout", answer, truncated);
        g_assert_nonnull(json_object_get(answer, "stdout"));
        json_t *cut = json_object_get(truncated, "stdout");
        g_assert_cmpint(json_integer_value(json_object_get(cut, "total_bytes")), ==,
                        (gint64)text->len);
        g_assert_cmpint(json_integer_value(json_object_get(cut, "kept_bytes")), ==,
                        (gint64)json_string_length(json_object_get(answer, "stdout")));
        sp_capture_clear(&capture);
    }
}

static void test_capture_binary(void)
{
    struct sp_capture capture;
    g_autoptr(json_t) answer = json_object();
    g_autoptr(json_t) truncated = json_object();
    sp_capture_init(&capture, 64);
    sp_capture_add(&capture, "a\0b", 3);
    sp_capture_to_json(&capture, "stderr", answer, truncated);
    g_assert_cmpstr(json_string_value(json_object_get(answer, "stderr_base64")), ==, "YQBi");
    g_assert_cmpuint(json_string_length(json_object_get(answer, "stderr")), ==, 3);
    g_assert_cmpuint(json_object_size(truncated), ==, 0);
    sp_capture_clear(&capture);

    /* Not UTF-8: readable text and the exact bytes. */
    sp_capture_init(&capture, 64);
    sp_capture_add(&capture, "a\xff", 2);
    sp_capture_to_json(&capture, "stdout", answer, truncated);
    g_assert_cmpstr(json_string_value(json_object_get(answer, "stdout")), ==, "a\xef\xbf\xbd");
    g_assert_cmpstr(json_string_value(json_object_get(answer, "stdout_base64")), ==, "Yf8=");
    sp_capture_clear(&capture);
}

static struct sp_link_event *make_event(uint8_t kind, const void *data, size_t len)
{
    struct sp_link_event *event = g_malloc0(sizeof(*event) + len);
    event->id = 12;
    event->kind = kind;
    event->data_len = (uint32_t)len;
    memcpy(event->data, data, len);
    return event;
}

static void check_text(const struct sp_link_event *event, const char *expected)
{
    size_t max = sp_event_text_max(event);
    g_autofree char *buffer = g_malloc(max + 1);
    size_t len = sp_event_text(event, buffer);
    g_assert_cmpuint(len, <=, max);
    buffer[len] = '\0';
    g_assert_cmpstr(buffer, ==, expected);
    json_t *value =
        sp_json_parse(strstr(buffer, "data: ") + 6, strlen(strstr(buffer, "data: ") + 6), NULL);
    g_assert_nonnull(value);
    json_decref(value);
}

static void test_event_text(void)
{
    g_autofree struct sp_link_event *out = make_event(SP_EVENT_STDOUT, "hi\n", 3);
    check_text(out, "id: 12\nevent: stdout\ndata: {\"type\":\"stdout\",\"data\":\"aGkK\"}\n\n");
    g_autofree struct sp_link_event *started = make_event(SP_EVENT_STARTED, "", 0);
    started->pid = -1;
    check_text(started, "id: 12\nevent: started\ndata: {\"type\":\"started\",\"pid\":-1}\n\n");
    g_autofree struct sp_link_event *dropped = make_event(SP_EVENT_DROPPED, "", 0);
    dropped->dropped_stream = SP_EVENT_STDERR;
    dropped->dropped_bytes = UINT64_MAX;
    check_text(dropped, "id: 12\nevent: dropped\ndata: {\"type\":\"dropped\",\"stream\":\"stderr\","
                        "\"bytes\":9223372036854775807}\n\n");
    g_autofree struct sp_link_event *failed = make_event(SP_EVENT_ERROR, "codeno \"x\"\n\377", 12);
    failed->code_len = 4;
    check_text(failed,
               "id: 12\nevent: error\ndata: {\"type\":\"error\",\"code\":\"code\",\"message\":"
               "\"no \\\"x\\\"\\n\357\277\275\"}\n\n");
    g_autofree struct sp_link_event *exited = make_event(SP_EVENT_EXITED, "", 0);
    exited->exit = (struct sp_msg_exit){.exit_code = INT32_MIN,
                                        .signal = INT32_MIN,
                                        .flags = 0xff,
                                        .duration_us = UINT64_MAX,
                                        .cpu_us = UINT64_MAX,
                                        .peak_memory_bytes = UINT64_MAX / 4};
    g_autofree char *buffer = g_malloc0(sp_event_text_max(exited) + 1);
    g_assert_cmpuint(sp_event_text(exited, buffer), <, sp_event_text_max(exited));
}

static void test_base64(void)
{
    uint8_t bytes[300];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 7);
    for (size_t len = 1; len < sizeof(bytes); len++) {
        g_autofree struct sp_link_event *event = make_event(SP_EVENT_STDOUT, bytes, len);
        g_autofree char *base64 = g_base64_encode(bytes, len);
        g_autofree char *expected = g_strdup_printf(
            "id: 12\nevent: stdout\ndata: {\"type\":\"stdout\",\"data\":\"%s\"}\n\n", base64);
        check_text(event, expected);
    }
}

static void test_own_events(void)
{
    g_autoptr(GString) text = g_string_new(NULL);
    sp_event_text_resync(text, 41, 17);
    g_assert_cmpstr(
        text->str, ==,
        "id: 41\nevent: resync_required\ndata: {\"type\":\"resync_required\",\"oldest_id\":17}"
        "\n\n");
    g_string_truncate(text, 0);
    sp_event_text_error(text, "lost", "a\nb");
    g_assert_cmpstr(
        text->str, ==,
        "event: error\ndata: {\"type\":\"error\",\"code\":\"lost\",\"message\":\"a\\nb\"}\n\n");
}

static void test_signals(void)
{
    g_assert_cmpint(sp_signal_from_name("SIGTERM"), ==, SIGTERM);
    g_assert_cmpint(sp_signal_from_name("KILL"), ==, SIGKILL);
    g_assert_cmpint(sp_signal_from_name("SIGNOSUCH"), ==, 0);
    g_assert_cmpint(sp_signal_from_name(""), ==, 0);
}

static void test_lenient(void)
{
    static const struct sp_json_field table[] = {{"n", SP_JSON_INT, 0, 1, 10, .required = true},
                                                 {NULL}};
    int64_t n = 0;
    g_autoptr(GError) error = NULL;
    g_autoptr(json_t) more = json_pack("{s:i,s:i}", "n", 3, "later", 4);
    g_assert_true(sp_node_decode(more, table, &n, &error));
    g_assert_cmpint(n, ==, 3);
    g_autoptr(json_t) bad = json_pack("{s:i}", "n", 30);
    g_assert_false(sp_node_decode(bad, table, &n, &error));
    g_clear_error(&error);
    g_assert_false(sp_node_decode(NULL, table, &n, &error));
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/node/slots", test_slots);
    g_test_add_func("/node/slots-come-back-late", test_slots_come_back_late);
    g_test_add_func("/node/brake", test_brake);
    g_test_add_func("/node/capture", test_capture);
    g_test_add_func("/node/capture-text", test_capture_text);
    g_test_add_func("/node/capture-binary", test_capture_binary);
    g_test_add_func("/node/event-text", test_event_text);
    g_test_add_func("/node/base64", test_base64);
    g_test_add_func("/node/own-events", test_own_events);
    g_test_add_func("/node/signals", test_signals);
    g_test_add_func("/node/lenient", test_lenient);
    return g_test_run();
}
