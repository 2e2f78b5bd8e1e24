#include <fcntl.h>
#include <glib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/events.h"

static int code_of(const char *text)
{
    g_autoptr(json_t) event = sp_json_parse(text, strlen(text), NULL);
    return sp_event_exit_code(event);
}

static void test_exit_codes(void)
{
    static const struct {
        const char *event;
        int code;
    } rows[] = {
        {"{\"type\":\"process_exited\",\"exit_code\":0}", 0},
        {"{\"type\":\"process_exited\",\"exit_code\":255,\"signal\":null}", 255},
        {"{\"type\":\"process_exited\",\"exit_code\":143,\"signal\":15}", 143},
        {"{\"type\":\"process_exited\",\"exit_code\":143,\"signal\":\"SIGTERM\"}", 143},
        {"{\"type\":\"process_exited\",\"exit_code\":0,\"signal\":0}", 0},
        {"{\"type\":\"process_exited\",\"exit_code\":0,\"timed_out\":true}", 124},
        {"{\"type\":\"process_exited\"}", 125},
        {"{\"type\":\"process_exited\",\"exit_code\":\"0\"}", 125},
        {"{\"type\":\"process_exited\",\"exit_code\":-1}", 125},
        {"{\"type\":\"process_exited\",\"exit_code\":256}", 125},
        {"{\"type\":\"error\",\"code\":\"command_not_found\"}", 127},
        {"{\"type\":\"error\",\"code\":\"not_executable\"}", 126},
        {"{\"type\":\"error\",\"code\":\"cwd_not_found\"}", 127},
        {"{\"type\":\"error\",\"code\":\"resource_limit\"}", 125},
        {"{\"type\":\"error\"}", 125},
        {"{}", 125},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++)
        g_assert_cmpint(code_of(rows[i].event), ==, rows[i].code);
}

static bool take(struct sp_event_sink *sink, const char *id, const char *data)
{
    struct sp_sse_event event = {.id = id, .type = "", .data = data, .data_len = strlen(data)};
    return sp_event_sink_take(sink, &event);
}

static void test_output_once_and_in_order(void)
{
    int fds[2];
    g_assert_cmpint(pipe2(fds, O_CLOEXEC | O_NONBLOCK), ==, 0);
    struct sp_event_sink sink = {.out_fd = fds[1], .err_fd = fds[1]};
    g_assert_true(take(&sink, "1", "{\"type\":\"started\",\"pid\":1}"));
    g_assert_true(take(&sink, "2", "{\"type\":\"stdout\",\"data\":\"YQA=\"}")); /* "a", NUL */
    g_assert_true(take(&sink, "2", "{\"type\":\"stdout\",\"data\":\"YQA=\"}")); /* a replay */
    g_assert_true(take(&sink, "1", "{\"type\":\"stdout\",\"data\":\"eHg=\"}"));
    g_assert_true(take(&sink, "3", "{\"type\":\"stderr\",\"data\":\"Yg==\"}"));
    g_assert_true(take(&sink, "3", "not json"));
    g_assert_true(take(&sink, "3", "{\"type\":\"stdout\"}"));
    char bytes[16];
    g_assert_cmpint(read(fds[0], bytes, sizeof bytes), ==, 3);
    g_assert_cmpmem(bytes, 3, "a\0b", 3);
    g_assert_cmpuint(sink.last_id, ==, 3);
    g_assert_false(sink.ended);
    g_assert_false(take(&sink, "4", "{\"type\":\"process_exited\",\"exit_code\":6}"));
    g_assert_true(sink.ended);
    g_assert_cmpint(sink.exit_code, ==, 6);
    close(fds[0]);
    close(fds[1]);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/events/exit-codes", test_exit_codes);
    g_test_add_func("/events/output-once-and-in-order", test_output_once_and_in_order);
    return g_test_run();
}
