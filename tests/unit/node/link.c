/* The link against an agent that misbehaves. */
#include "node/link.h"

#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "peer.h"

static const struct misdeed good;

static int64_t soon(int64_t ms)
{
    return sp_time_monotonic_us() + ms * 1000;
}

static struct sp_link *start_link(struct peer *peer, int pidfd, void (*on_gone)(void *), void *user)
{
    struct sp_link_spec spec = {
        .sandbox_id = "sbx_test",
        .connect = peer_connect,
        .connect_user = peer,
        .pidfd = pidfd,
        .max_event_data = 32768,
        .on_gone = on_gone,
        .gone_user = user,
    };
    struct sp_link *link = sp_link_start(&spec, NULL);
    g_assert_nonnull(link);
    return link;
}

static void stop_link(struct sp_link *link, struct peer *peer)
{
    sp_link_stop(link, NULL);
    sp_link_unref(link);
    peer_clear(peer);
}

static const char *const argv[] = {"true", NULL};

static struct sp_link_sub *subscribe(struct sp_link *link, uint64_t after, bool with_start,
                                     GError **error)
{
    struct sp_msg_start start = {.session_id = sp_span_of("ses_test"),
                                 .argv = {1, argv, {NULL, 0}}};
    return sp_link_subscribe(link, "ses_test", with_start ? &start : NULL, after, soon(10000), NULL,
                             error);
}

/* Reads all events and checks that they are what the peer has, each once, in order. */
static void read_all(struct peer *peer, struct sp_link_sub *sub, uint64_t first)
{
    g_autofree uint8_t *expected = g_malloc(peer->event_bytes);
    for (uint64_t id = first; id <= peer->n_events; id++) {
        struct sp_link_event *event = NULL;
        g_assert_cmpint(sp_link_sub_pull(sub, soon(10000), &event), ==, SP_PULL_EVENT);
        g_assert_cmpuint(event->id, ==, id);
        if (event->kind == SP_EVENT_STDOUT) {
            peer_fill(expected, peer->event_bytes, id);
            g_assert_cmpmem(event->data, event->data_len, expected, peer->event_bytes);
        }
        if (id == peer->n_events)
            g_assert_cmpint(event->exit.exit_code, ==, 5);
        sp_link_sub_ack(sub, event->id, event->weight_end);
        g_free(event);
    }
    struct sp_link_event *event = NULL;
    g_assert_cmpint(sp_link_sub_pull(sub, soon(1000), &event), ==, SP_PULL_END);
}

/* One session over a peer with these misdeeds ends well. */
static void expect_recovery(const struct misdeed *misdeeds, unsigned n, unsigned violations)
{
    struct peer peer;
    struct sp_link_info info;
    g_autoptr(GError) error = NULL;
    peer_init(&peer);
    peer.misdeeds = misdeeds;
    peer.n_misdeeds = n;
    struct sp_link *link = start_link(&peer, -1, NULL, NULL);
    struct sp_link_sub *sub = subscribe(link, 0, true, &error);
    g_assert_no_error(error);
    read_all(&peer, sub, 1);
    sp_link_sub_free(sub);
    g_assert_true(sp_link_ping(link, soon(5000), &error));
    sp_link_info(link, &info);
    g_assert_cmpuint(info.violations, ==, violations);
    g_assert_cmpint(info.state, ==, SP_LINK_READY);
    stop_link(link, &peer);
}

static void test_good(void)
{
    expect_recovery(&good, 1, 0);
}

static void test_garbage_before_hello(void)
{
    char garbage[4000];
    for (size_t i = 0; i < sizeof(garbage); i++)
        garbage[i] = "SPA1\2\0\0\0\x40"[i % 9];
    struct misdeed bad = {.garbage = garbage, .garbage_len = sizeof(garbage), .wrong_nonce = true};
    expect_recovery(&bad, 1, 0);
}

static void test_silent_hello(void)
{
    static const struct misdeed bad = {.silent_hellos = true};
    struct peer peer;
    g_autoptr(GError) error = NULL;
    peer_init(&peer);
    peer.misdeeds = &bad;
    peer.n_misdeeds = 1;
    struct sp_link *link = start_link(&peer, -1, NULL, NULL);
    g_assert_true(sp_link_wait_ready(link, soon(5000), &error));
    g_assert_no_error(error);
    sp_link_stop(link, NULL);
    sp_link_unref(link);
    g_thread_join(g_steal_pointer(&peer.thread));
    g_assert_cmpuint(peer.hellos, ==, 2);
    g_assert_cmpuint(peer.zero_bytes, ==, 65552);
    peer_clear(&peer);
}

static void test_violations(void)
{
    uint8_t huge[SP_FRAME_HEADER_BYTES] = {'S', 'P', 'A', '1', SP_FRAME_EVENT, 0, 0, 0, 1, 0, 1, 0};
    uint8_t nonsense[64];
    memset(nonsense, 0xff, sizeof(nonsense));
    /* an EVENT (tag 2: the subscription after the START) without a payload */
    uint8_t empty[SP_FRAME_HEADER_BYTES] = {'S', 'P', 'A', '1', SP_FRAME_EVENT, 0, 0, 0, 0,
                                            0,   0,   0,   2};
    uint8_t second[SP_FRAME_HEADER_BYTES] = {'S', 'P', 'A', '1', SP_FRAME_HELLO_OK};
    const struct misdeed bad[] = {
        {.raw = huge, .raw_len = sizeof(huge)},
        {.raw = nonsense, .raw_len = sizeof(nonsense)},
        {.raw = empty, .raw_len = sizeof(empty)},
        {.raw = second, .raw_len = sizeof(second)},
        {.out_of_order = true},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        const struct misdeed two[] = {bad[i], good};
        expect_recovery(two, 2, 1);
    }
}

static void test_events_after_the_end(void)
{
    const struct misdeed two[] = {{.events_after_end = true}, good};
    expect_recovery(two, 2, 1);
}

static void test_over_credit(void)
{
    const struct misdeed two[] = {{.over_credit = true}, good};
    struct peer peer;
    struct sp_link_info info;
    peer_init(&peer);
    peer.misdeeds = two;
    peer.n_misdeeds = 2;
    peer.n_events = 200;
    peer.event_bytes = 8000;
    struct sp_link *link = start_link(&peer, -1, NULL, NULL);
    struct sp_link_sub *sub = subscribe(link, 0, true, NULL);
    g_assert_nonnull(sub);
    do { /* nobody reads, so it must break the rule */
        g_usleep(5000);
        sp_link_info(link, &info);
    } while (info.violations == 0);
    read_all(&peer, sub, 1);
    sp_link_sub_free(sub);
    stop_link(link, &peer);
}

static void test_slow_reader_is_bounded(void)
{
    struct peer peer;
    peer_init(&peer);
    peer.n_events = 1000;
    peer.event_bytes = 8000;
    struct sp_link *link = start_link(&peer, -1, NULL, NULL);
    struct sp_link_sub *sub = subscribe(link, 0, true, NULL);
    uint64_t before = 1, now = 0;
    while (now != before || now == 0) { /* until it stands still */
        before = now;
        g_usleep(50000);
        g_mutex_lock(&peer.lock);
        now = peer.sent_events_bytes;
        g_mutex_unlock(&peer.lock);
    }
    g_assert_cmpuint(now, <=, 512 << 10);
    read_all(&peer, sub, 1);
    sp_link_sub_free(sub);
    sp_link_stop(link, NULL);
    g_thread_join(g_steal_pointer(&peer.thread));
    g_assert_cmpuint(peer.acked, ==, peer.n_events);
    sp_link_unref(link);
    peer_clear(&peer);
}

static void cut_at(void *data, void *user)
{
    const struct misdeed cuts[] = {{.cut_after = GPOINTER_TO_SIZE(data)}, good};
    expect_recovery(cuts, 2, 0);
}

/* The connection breaks after each possible number of bytes; nothing is lost or doubled. */
static void test_cut_at_every_byte(void)
{
    struct peer peer;
    peer_init(&peer);
    /* HELLO_OK, STARTED, SUBSCRIBED, six events: well below this. */
    unsigned total = 1000;
    peer_clear(&peer);
    GThreadPool *pool = g_thread_pool_new(cut_at, NULL, 24, TRUE, NULL);
    for (size_t i = 1; i <= total; i++)
        g_thread_pool_push(pool, GSIZE_TO_POINTER(i), NULL);
    g_thread_pool_free(pool, FALSE, TRUE);
}

static void test_no_answer(void)
{
    static const struct misdeed bad = {.no_answers = true};
    struct peer peer;
    g_autoptr(GError) error = NULL;
    peer_init(&peer);
    peer.misdeeds = &bad;
    peer.n_misdeeds = 1;
    struct sp_link *link = start_link(&peer, -1, NULL, NULL);
    int64_t began = sp_time_monotonic_ms();
    g_assert_false(sp_link_ping(link, soon(100), &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_clear_error(&error);
    g_assert_null(sp_link_subscribe(link, "ses_test", NULL, 0, soon(100), NULL, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_assert_cmpint(sp_time_monotonic_ms() - began, <, 2000);
    stop_link(link, &peer);
}

static void test_wrong_reply(void)
{
    const struct misdeed two[] = {{.wrong_reply = true}, good};
    struct peer peer;
    struct sp_link_info info;
    peer_init(&peer);
    peer.misdeeds = two;
    peer.n_misdeeds = 2;
    struct sp_link *link = start_link(&peer, -1, NULL, NULL);
    g_assert_true(sp_link_ping(link, soon(5000), NULL)); /* repeated on the second connection */
    sp_link_info(link, &info);
    g_assert_cmpuint(info.violations, ==, 1);
    stop_link(link, &peer);
}

static void test_new_instance(void)
{
    const struct misdeed two[] = {{.cut_after = 400}, {.new_instance = true}};
    struct peer peer;
    struct sp_link_event *event = NULL;
    peer_init(&peer);
    peer.misdeeds = two;
    peer.n_misdeeds = 2;
    peer.n_events = 50;
    struct sp_link *link = start_link(&peer, -1, NULL, NULL);
    struct sp_link_sub *sub = subscribe(link, 0, true, NULL);
    g_assert_nonnull(sub);
    enum sp_pull pull;
    while ((pull = sp_link_sub_pull(sub, soon(5000), &event)) == SP_PULL_EVENT)
        g_free(g_steal_pointer(&event));
    g_assert_cmpint(pull, ==, SP_PULL_LOST);
    g_assert_nonnull(strstr(sp_link_sub_reason(sub), "started again"));
    sp_link_sub_free(sub);
    sp_link_stop(link, NULL);
    g_thread_join(g_steal_pointer(&peer.thread));
    g_assert_cmpuint(peer.starts, ==, 1);
    sp_link_unref(link);
    peer_clear(&peer);
}

static void test_gap_after_a_cut(void)
{
    const struct misdeed two[] = {{.cut_after = 300}, {.gap = true}};
    struct peer peer;
    struct sp_link_event *event = NULL;
    unsigned gaps = 0, last = 0;
    peer_init(&peer);
    peer.misdeeds = two;
    peer.n_misdeeds = 2;
    peer.n_events = 50;
    struct sp_link *link = start_link(&peer, -1, NULL, NULL);
    struct sp_link_sub *sub = subscribe(link, 0, true, NULL);
    for (;;) {
        enum sp_pull pull = sp_link_sub_pull(sub, soon(5000), &event);
        if (pull == SP_PULL_GAP) {
            uint64_t oldest, next;
            sp_link_sub_gap(sub, &oldest, &next);
            g_assert_cmpuint(next, ==, 50);
            gaps++;
            continue;
        }
        if (pull != SP_PULL_EVENT)
            break;
        last = (unsigned)event->id;
        g_free(g_steal_pointer(&event));
    }
    g_assert_cmpuint(gaps, ==, 1);
    g_assert_cmpuint(last, ==, 50);
    sp_link_sub_free(sub);
    stop_link(link, &peer);
}

static void set_flag(void *user)
{
    g_atomic_int_set((gint *)user, 1);
}

/* The process ends: what it has said still comes, then the loss. */
static void test_gone(void)
{
    const struct misdeed two[] = {{.cut_after = 260}, good};
    struct peer peer;
    struct sp_link_event *event = NULL;
    gint gone = 0;
    int ends[2];
    g_assert_cmpint(pipe(ends), ==, 0);
    peer_init(&peer);
    peer.misdeeds = two;
    peer.n_misdeeds = 2;
    peer.n_events = 50;
    struct sp_link *link = start_link(&peer, ends[0], set_flag, &gone);
    struct sp_link_sub *sub = subscribe(link, 0, true, NULL);
    g_assert_nonnull(sub);
    peer.refuse = true;
    close(ends[1]); /* readable: as a pidfd after the end */
    unsigned n = 0;
    enum sp_pull pull;
    while ((pull = sp_link_sub_pull(sub, soon(5000), &event)) == SP_PULL_EVENT) {
        g_free(g_steal_pointer(&event));
        n++;
    }
    g_assert_cmpint(pull, ==, SP_PULL_LOST);
    g_assert_cmpuint(n, >=, 1);
    g_autoptr(GError) error = NULL;
    g_assert_false(sp_link_ping(link, soon(5000), &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    sp_link_sub_free(sub);
    sp_link_stop(link, NULL);
    g_assert_cmpint(g_atomic_int_get(&gone), ==, 1);
    sp_link_unref(link);
    close(ends[0]);
    peer_clear(&peer);
}

static void *stop_later(void *link)
{
    g_usleep(50000);
    sp_link_stop(link, NULL);
    return NULL;
}

/* A worker that stops cuts streams without a word about the command. */
static void test_stop(void)
{
    static const struct misdeed bad = {.cut_after = 260};
    struct peer peer;
    struct sp_link_event *event = NULL;
    peer_init(&peer);
    peer.misdeeds = &bad;
    peer.n_misdeeds = 1;
    peer.n_events = 50;
    struct sp_link *link = start_link(&peer, -1, NULL, NULL);
    struct sp_link_sub *sub = subscribe(link, 0, true, NULL);
    GThread *thread = g_thread_new("stop", stop_later, link);
    enum sp_pull pull;
    while ((pull = sp_link_sub_pull(sub, soon(5000), &event)) == SP_PULL_EVENT)
        g_free(g_steal_pointer(&event));
    g_assert_cmpint(pull, ==, SP_PULL_STOPPED);
    g_thread_join(thread);
    sp_link_sub_free(sub);
    sp_link_unref(link);
    peer_clear(&peer);
}

/* Input through a small window over connections that break. */
static void test_input(void)
{
    struct misdeed cuts[40];
    for (size_t i = 0; i + 1 < G_N_ELEMENTS(cuts); i++)
        cuts[i] = (struct misdeed){.cut_after = 100 + 37 * i};
    cuts[G_N_ELEMENTS(cuts) - 1] = good;
    struct peer peer;
    uint8_t bytes[60000];
    size_t taken;
    g_autoptr(GError) error = NULL;
    peer_fill(bytes, sizeof(bytes), 3);
    peer_init(&peer);
    peer.misdeeds = cuts + 30;
    peer.n_misdeeds = 10;
    peer.stdin_window = 1000;
    struct sp_link *link = start_link(&peer, -1, NULL, NULL);
    struct sp_link_input *input = sp_link_input_open(link, "ses_test");
    for (int i = 0; i < 2; i++) {
        g_assert_true(sp_link_input_write(input, bytes, sizeof(bytes), soon(60000), NULL, NULL,
                                          &taken, &error));
        g_assert_no_error(error);
        g_assert_cmpuint(taken, ==, sizeof(bytes));
    }
    g_assert_true(sp_link_input_close(input, soon(5000), &error));
    g_assert_false(sp_link_input_write(input, bytes, 1, soon(5000), NULL, NULL, &taken, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    sp_link_input_free(input);
    sp_link_stop(link, NULL);
    g_thread_join(g_steal_pointer(&peer.thread));
    g_assert_cmpuint(peer.input->len, ==, 2 * sizeof(bytes));
    g_assert_cmpmem(peer.input->data, sizeof(bytes), bytes, sizeof(bytes));
    g_assert_cmpmem(peer.input->data + sizeof(bytes), sizeof(bytes), bytes, sizeof(bytes));
    sp_link_unref(link);
    peer_clear(&peer);
}

static bool at_once(void *user)
{
    return true;
}

static void test_input_shut(void)
{
    struct peer peer;
    size_t taken;
    g_autoptr(GError) error = NULL;
    peer_init(&peer);
    peer.stdin_window = 0;
    struct sp_link *link = start_link(&peer, -1, NULL, NULL);
    struct sp_link_input *input = sp_link_input_open(link, "ses_test");
    g_assert_false(sp_link_input_write(input, "x", 1, soon(150), NULL, NULL, &taken, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_clear_error(&error);
    g_assert_false(sp_link_input_write(input, "x", 1, soon(60000), at_once, NULL, &taken, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_assert_cmpuint(taken, ==, 0);
    sp_link_input_free(input);
    stop_link(link, &peer);
}

static void test_command_too_long(void)
{
    struct peer peer;
    g_autoptr(GError) error = NULL;
    g_autofree char *text = g_strnfill(70000, 'x');
    const char *const long_argv[] = {text, NULL};
    struct sp_msg_start start = {.session_id = sp_span_of("s"), .argv = {1, long_argv, {NULL, 0}}};
    struct sp_msg_session session;
    peer_init(&peer);
    struct sp_link *link = start_link(&peer, -1, NULL, NULL);
    g_assert_false(sp_link_session_start(link, &start, soon(1000), &session, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_PAYLOAD_TOO_LARGE);
    stop_link(link, &peer);
}

int main(int argc, char **args)
{
    g_test_init(&argc, &args, NULL);
    g_test_add_func("/link/good", test_good);
    g_test_add_func("/link/garbage-before-hello", test_garbage_before_hello);
    g_test_add_func("/link/silent-hello", test_silent_hello);
    g_test_add_func("/link/violations", test_violations);
    g_test_add_func("/link/events-after-the-end", test_events_after_the_end);
    g_test_add_func("/link/over-credit", test_over_credit);
    g_test_add_func("/link/slow-reader-is-bounded", test_slow_reader_is_bounded);
    g_test_add_func("/link/cut-at-every-byte", test_cut_at_every_byte);
    g_test_add_func("/link/no-answer", test_no_answer);
    g_test_add_func("/link/wrong-reply", test_wrong_reply);
    g_test_add_func("/link/new-instance", test_new_instance);
    g_test_add_func("/link/gap-after-a-cut", test_gap_after_a_cut);
    g_test_add_func("/link/gone", test_gone);
    g_test_add_func("/link/stop", test_stop);
    g_test_add_func("/link/input", test_input);
    g_test_add_func("/link/input-shut", test_input_shut);
    g_test_add_func("/link/command-too-long", test_command_too_long);
    return g_test_run();
}
