/* A link whose sandbox is paused or suspended. */
#include "node/link.h"

#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "peer.h"

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

/* A paused sandbox is not asked, and its silence is no fault: neither before it has connected nor
 * with a connection that answers nothing. Afterwards all goes on. */
static void test_pause(void)
{
    static const struct misdeed silent = {.no_answers = true};
    struct peer peer;
    struct sp_link_info info;
    g_autoptr(GError) error = NULL;
    peer_init(&peer);
    peer.misdeeds = &silent;
    peer.n_misdeeds = 1;
    struct sp_link *link = start_link(&peer, -1, NULL, NULL);
    g_assert_true(sp_link_wait_ready(link, soon(5000), &error));
    sp_link_pause(link, true);
    sp_link_pause(link, true);
    g_assert_false(sp_link_ping(link, soon(5000), &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    g_clear_error(&error);
    g_assert_null(subscribe(link, 0, true, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    g_clear_error(&error);
    g_assert_null(subscribe(link, 0, false, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    g_clear_error(&error);
    g_assert_true(sp_link_hang_up(link, &error));
    g_usleep(200000);
    sp_link_info(link, &info);
    g_assert_cmpint(info.state, ==, SP_LINK_CONNECTING);
    g_assert_cmpuint(info.connects, ==, 1); /* it does not come back by itself */
    sp_link_pause(link, false);
    g_assert_true(sp_link_wait_ready(link, soon(5000), &error));
    stop_link(link, &peer);
}

static void *pause_then_go_on(void *link)
{
    g_usleep(50000);
    sp_link_pause(link, true);
    g_usleep(1500000);
    sp_link_pause(link, false);
    return NULL;
}

/* A writer waits out a pause in the middle of its bytes; none is lost or doubled. */
static void test_input_over_a_pause(void)
{
    struct peer peer;
    g_autofree uint8_t *bytes = g_malloc(600000);
    size_t taken;
    g_autoptr(GError) error = NULL;
    peer_fill(bytes, 600000, 3);
    peer_init(&peer);
    peer.stdin_window = 100;
    struct sp_link *link = start_link(&peer, -1, NULL, NULL);
    struct sp_link_input *input = sp_link_input_open(link, "ses_test");
    GThread *thread = g_thread_new("pause", pause_then_go_on, link);
    g_assert_true(
        sp_link_input_write(input, bytes, 600000, soon(60000), NULL, NULL, &taken, &error));
    g_assert_no_error(error);
    g_assert_cmpuint(taken, ==, 600000);
    g_thread_join(thread);
    sp_link_input_free(input);
    sp_link_stop(link, NULL);
    g_thread_join(g_steal_pointer(&peer.thread));
    g_assert_cmpmem(peer.input->data, peer.input->len, bytes, 600000);
    sp_link_unref(link);
    peer_clear(&peer);
}

static void *suspend_later(void *link)
{
    g_usleep(100000);
    sp_link_suspend(link);
    return NULL;
}

/* Streams of a suspended sandbox end behind what has arrived, and are not lost; a request under way
 * is told why. */
static void test_suspend(void)
{
    static const struct misdeed silent = {.no_answers = true};
    struct peer peer;
    struct sp_link_event *event = NULL;
    g_autoptr(GError) error = NULL;
    unsigned n = 0;
    peer_init(&peer);
    peer.n_events = 4;
    struct sp_link *link = start_link(&peer, -1, NULL, NULL);
    struct sp_link_sub *sub = subscribe(link, 0, true, &error);
    g_assert_no_error(error);
    sp_link_pause(link, true);
    sp_link_suspend(link);
    enum sp_pull pull;
    while ((pull = sp_link_sub_pull(sub, soon(2000), &event)) == SP_PULL_EVENT) {
        n++;
        g_free(g_steal_pointer(&event));
    }
    /* All that had come is there; with the last event it has ended by itself. */
    g_assert_cmpint(pull, ==, n == 4 ? SP_PULL_END : SP_PULL_SUSPENDED);
    sp_link_sub_free(sub);
    g_assert_false(sp_link_ping(link, soon(1000), &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_CONFLICT);
    g_clear_error(&error);
    sp_link_unref(link);
    peer_clear(&peer);

    peer_init(&peer);
    peer.misdeeds = &silent;
    peer.n_misdeeds = 1;
    link = start_link(&peer, -1, NULL, NULL);
    g_assert_true(sp_link_wait_ready(link, soon(5000), NULL));
    GThread *thread = g_thread_new("suspend", suspend_later, link);
    g_assert_false(sp_link_ping(link, soon(5000), &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_CONFLICT);
    g_thread_join(thread);
    sp_link_unref(link);
    peer_clear(&peer);
}

int main(int argc, char **argv_)
{
    g_test_init(&argc, &argv_, NULL);
    g_test_add_func("/link_pause/pause", test_pause);
    g_test_add_func("/link_pause/suspend", test_suspend);
    g_test_add_func("/link_pause/input", test_input_over_a_pause);
    return g_test_run();
}
