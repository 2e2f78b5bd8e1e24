/* The two blocking clients, QMP and agent, against scripted peers. */
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "driver/microvm/boot_talk.h"
#include "os/endpoint.h"
#include "driver/microvm/qmp_client.h"
#include "wire/agent_frame.h"
#include "wire/agent_msg.h"
#include "wire/qmp.h"

#define GREETING                                                                                   \
    "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 22, \"minor\": 2, \"major\": 7}, "             \
    "\"package\": \"Debian\"}, \"capabilities\": []}}\r\n"

static void pair(int ret[2])
{
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ret), ==, 0);
}

/* All that QEMU will say can be written before the client asks: ids are known, 1 is
 * qmp_capabilities. */
static struct sp_qmp *qmp_with(int fds[2], const char *script, GError **error)
{
    pair(fds);
    g_autofree char *all = g_strconcat(GREETING "{\"return\": {}, \"id\": 1}\r\n", script, NULL);
    g_assert_cmpint(write(fds[1], all, strlen(all)), ==, (ssize_t)strlen(all));
    return sp_qmp_open(fds[0], 1000, error);
}

static void test_qmp_order(void)
{
    int fds[2];
    g_autoptr(GError) error = NULL;
    struct sp_qmp *qmp =
        qmp_with(fds,
                 "{\"event\": \"A\", \"data\": {\"n\": 1}}\r\n"
                 "{\"return\": {\"late\": 1}, \"id\": 99}\r\n"
                 "{\"return\": {\"x\": 2}, \"id\": 2}\r\n"
                 "{\"event\": \"A\", \"data\": {\"n\": 2}}\r\n"
                 "{\"event\": \"B\"}\r\n"
                 "{\"error\": {\"class\": \"C\", \"desc\": \"no\"}, \"id\": 3}\r\n",
                 &error);
    g_assert_no_error(error);
    g_assert_cmpstr(sp_qmp_version(qmp), ==, "7.2.22 Debian");
    json_t *value = sp_qmp_call(qmp, "x", NULL, -1, 1000, &error);
    g_assert_cmpint(json_integer_value(json_object_get(value, "x")), ==, 2);
    json_decref(value);
    json_t *b = sp_qmp_wait_event(qmp, "B", 1000, &error);
    g_assert_nonnull(b);
    json_decref(b);
    for (int n = 1; n <= 2; n++) {
        json_t *a = sp_qmp_wait_event(qmp, "A", 1000, &error);
        g_assert_cmpint(json_integer_value(json_object_get(a, "n")), ==, n);
        json_decref(a);
    }
    g_assert_false(sp_qmp_run(qmp, "y", NULL, -1, 1000, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    g_clear_error(&error);
    /* Nothing more comes: the deadline ends it. */
    int64_t start_ms = sp_time_monotonic_ms();
    g_assert_false(sp_qmp_run(qmp, "z", NULL, -1, 100, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_assert_cmpint(sp_time_monotonic_ms() - start_ms, >=, 99);
    g_clear_error(&error);
    close(fds[1]);
    g_assert_null(sp_qmp_wait_event(qmp, "A", 1000, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    sp_qmp_free(qmp);
}

static void test_qmp_fd(void)
{
    int fds[2];
    g_autoptr(GError) error = NULL;
    struct sp_qmp *qmp = qmp_with(fds, "{\"return\": {}, \"id\": 2}\r\n", &error);
    int pipes[2];
    g_assert_cmpint(pipe2(pipes, O_CLOEXEC), ==, 0);
    g_assert_true(
        sp_qmp_run(qmp, "getfd", json_pack("{s:s}", "fdname", "state"), pipes[1], 1000, &error));
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    char text[4096];
    struct iovec iov = {text, sizeof text};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof control};
    /* The two commands may come in one read, or in two. */
    int passed = -1;
    for (int i = 0; i < 2 && passed < 0; i++) {
        msg.msg_controllen = sizeof control;
        g_assert_cmpint(recvmsg(fds[1], &msg, MSG_CMSG_CLOEXEC), >, 0);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        if (c)
            memcpy(&passed, CMSG_DATA(c), sizeof passed);
    }
    g_assert_cmpint(passed, >=, 0);
    g_assert_cmpint(write(passed, "x", 1), ==, 1);
    g_assert_cmpint(read(pipes[0], text, 1), ==, 1);
    close(passed);
    close(pipes[0]);
    close(pipes[1]);
    close(fds[1]);
    sp_qmp_free(qmp);
}

static gpointer flood(gpointer data)
{
    int fd = GPOINTER_TO_INT(data);
    char line[4096];
    memset(line, 'x', sizeof line);
    while (send(fd, line, sizeof line, MSG_NOSIGNAL) > 0)
        ;
    close(fd);
    return NULL;
}

static void test_qmp_hostile(void)
{
    static const char *const bad[] = {
        "{\"return\": {}}\r\n",  "hello\r\n",
        "{\"QMP\": {}}\r\n",     GREETING "{\"error\": {\"class\": \"C\", \"desc\": \"no\"}}\r\n",
        GREETING "nonsense\r\n",
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        int fds[2];
        pair(fds);
        g_autoptr(GError) error = NULL;
        g_assert_cmpint(write(fds[1], bad[i], strlen(bad[i])), ==, (ssize_t)strlen(bad[i]));
        g_assert_null(sp_qmp_open(fds[0], 1000, &error));
        g_assert_nonnull(error);
        close(fds[1]);
    }
    /* A line without an end: bounded. */
    int fds[2];
    pair(fds);
    GThread *thread = g_thread_new("flood", flood, GINT_TO_POINTER(fds[1]));
    g_autoptr(GError) error = NULL;
    g_assert_null(sp_qmp_open(fds[0], 5000, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INTERNAL);
    g_thread_join(thread);
}

static void test_endpoint(void)
{
    /* A directory whose path is longer than sun_path. */
    g_autofree char *top = g_dir_make_tmp("space-endpoint-XXXXXX", NULL);
    g_autofree char *filler = g_strnfill(150, 'd');
    g_autofree char *dir = g_build_filename(top, filler, NULL);
    g_assert_cmpint(g_mkdir_with_parents(dir, 0700), ==, 0);
    g_autoptr(GError) error = NULL;
    g_assert_cmpint(sp_endpoint_connect(dir, "a.sock", 100, &error), ==, -1);
    g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
    g_clear_error(&error);
    for (int i = 0; i < 2; i++) { /* the second one replaces what the first one has left */
        int listener = sp_endpoint_listen(dir, "a.sock", &error);
        g_assert_no_error(error);
        int fd = sp_endpoint_connect(dir, "a.sock", 100, &error);
        g_assert_no_error(error);
        close(fd);
        close(listener);
        g_assert_cmpint(sp_endpoint_connect(dir, "a.sock", 100, &error), ==, -1);
        g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
        g_clear_error(&error);
    }
    /* A full backlog ends with the deadline. */
    int listener = sp_endpoint_listen(dir, "a.sock", &error);
    int fds[64];
    int n = 0;
    int64_t start_ms = sp_time_monotonic_ms();
    do
        fds[n] = sp_endpoint_connect(dir, "a.sock", 50, &error);
    while (fds[n] >= 0 && ++n < 64);
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_assert_cmpint(sp_time_monotonic_ms() - start_ms, >=, 49);
    while (n > 0)
        close(fds[--n]);
    close(listener);
    g_autofree char *socket_path = g_build_filename(dir, "a.sock", NULL);
    unlink(socket_path);
    rmdir(dir);
    rmdir(top);
}

/* --- the agent's side --- */

struct peer {
    int fd;
    unsigned deaf_hellos; /* so many HELLOs are not answered */
    bool garbage;         /* says something else before its HELLO_OK */
    bool refuse;          /* answers requests with ERROR */
    uint64_t zeros;       /* bytes that were no frame */
};

static void reply(struct peer *peer, uint8_t type, uint32_t tag, const struct sp_pack *payload)
{
    uint8_t head[SP_FRAME_HEADER_BYTES];
    struct sp_frame_header header = {
        .type = type, .payload_len = (uint32_t)payload->len, .tag = tag};
    sp_frame_header_encode(&header, head);
    g_assert_cmpint(send(peer->fd, head, sizeof head, MSG_NOSIGNAL), ==, sizeof head);
    if (payload->len > 0)
        g_assert_cmpint(send(peer->fd, payload->bytes, payload->len, MSG_NOSIGNAL), ==,
                        (ssize_t)payload->len);
}

static void answer_hello(struct peer *peer, const uint8_t *payload, const struct sp_frame_header *h)
{
    struct sp_msg_hello hello;
    g_assert_true(sp_msg_hello_decode(payload, h->payload_len, &hello));
    if (peer->deaf_hellos > 0) {
        peer->deaf_hellos--;
        return;
    }
    uint8_t bytes[512];
    struct sp_pack p;
    struct sp_msg_hello_ok ok = {.version = 1, .build = sp_span_of("test")};
    if (peer->garbage) {
        /* The rest of a frame, and an answer to somebody else. */
        g_assert_cmpint(send(peer->fd, "left over SPA1 bytes", 20, MSG_NOSIGNAL), ==, 20);
        sp_pack_init(&p, bytes, sizeof bytes);
        sp_msg_hello_ok_encode(&p, &ok);
        reply(peer, SP_FRAME_HELLO_OK, 1, &p);
    }
    memcpy(ok.nonce, hello.nonce, sizeof ok.nonce);
    sp_pack_init(&p, bytes, sizeof bytes);
    sp_msg_hello_ok_encode(&p, &ok);
    reply(peer, SP_FRAME_HELLO_OK, h->tag, &p);
}

static void answer_events(struct peer *peer, uint32_t tag)
{
    uint8_t bytes[512];
    struct sp_pack p;
    struct sp_msg_event events[] = {
        {.event_id = 1, .kind = SP_EVENT_STARTED, .pid = 5},
        {.event_id = 2, .kind = SP_EVENT_STDOUT, .data = sp_span_of("out")},
        {.event_id = 3, .kind = SP_EVENT_STDERR, .data = sp_span_of("err")},
        {.event_id = 4, .kind = SP_EVENT_EXITED, .exit = {.exit_code = 7}},
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(events); i++) {
        sp_pack_init(&p, bytes, sizeof bytes);
        sp_msg_event_encode(&p, &events[i]);
        reply(peer, SP_FRAME_EVENT, tag, &p);
    }
}

static void answer(struct peer *peer, const struct sp_frame_header *h, const uint8_t *payload)
{
    uint8_t bytes[512];
    struct sp_pack p;
    sp_pack_init(&p, bytes, sizeof bytes);
    if (h->type == SP_FRAME_HELLO) {
        answer_hello(peer, payload, h);
    } else if (peer->refuse) {
        struct sp_msg_error error = {sp_span_of("not_identified"), sp_span_of("locked")};
        sp_msg_error_encode(&p, &error);
        reply(peer, SP_FRAME_ERROR, h->tag, &p);
    } else if (h->type == SP_FRAME_START) {
        struct sp_msg_session session = {.state = SP_MSG_SESSION_RUNNING, .pid = 5};
        sp_msg_session_encode(&p, &session);
        reply(peer, SP_FRAME_STARTED, h->tag, &p);
    } else if (h->type == SP_FRAME_SUBSCRIBE) {
        struct sp_msg_subscribed subscribed = {1, 1, 1, 0};
        sp_msg_subscribed_encode(&p, &subscribed);
        reply(peer, SP_FRAME_SUBSCRIBED, h->tag, &p);
        answer_events(peer, h->tag);
    } else {
        reply(peer, SP_FRAME_OK, h->tag, &p);
    }
}

static gpointer serve(gpointer data)
{
    struct peer *peer = data;
    g_autoptr(GByteArray) input = g_byte_array_new();
    uint8_t bytes[65536];
    ssize_t n;
    while ((n = recv(peer->fd, bytes, sizeof bytes, 0)) > 0) {
        g_byte_array_append(input, bytes, (guint)n);
        struct sp_frame_header h;
        for (;;) {
            guint zeros = 0;
            while (zeros < input->len && input->data[zeros] == 0)
                zeros++;
            g_byte_array_remove_range(input, 0, zeros);
            peer->zeros += zeros;
            if (input->len < SP_FRAME_HEADER_BYTES || !sp_frame_header_decode(input->data, &h) ||
                input->len < SP_FRAME_HEADER_BYTES + h.payload_len)
                break;
            answer(peer, &h, input->data + SP_FRAME_HEADER_BYTES);
            g_byte_array_remove_range(input, 0, SP_FRAME_HEADER_BYTES + h.payload_len);
        }
    }
    close(peer->fd);
    return NULL;
}

static struct sp_boot_talk *talk_with(struct peer *peer, GThread **ret_thread)
{
    int fds[2];
    pair(fds);
    peer->fd = fds[1];
    *ret_thread = g_thread_new("peer", serve, peer);
    return sp_boot_talk_new(fds[0]);
}

static void test_talk(void)
{
    struct peer peer = {.garbage = true};
    GThread *thread;
    struct sp_boot_talk *talk = talk_with(&peer, &thread);
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_boot_talk_hello(talk, "sbx_test", true, 5000, &error));
    g_assert_true(sp_boot_talk_identity(talk, 5000, &error));
    const char *argv[] = {"/bin/true", NULL};
    g_autoptr(GString) output = g_string_new(NULL);
    int exit_code = 0;
    g_assert_true(sp_boot_talk_run(talk, argv, NULL, 5000, output, &exit_code, &error));
    g_assert_cmpstr(output->str, ==, "outerr");
    g_assert_cmpint(exit_code, ==, 7);
    g_assert_true(sp_boot_talk_quiesce(talk, 5000, &error));
    g_assert_no_error(error);
    sp_boot_talk_free(talk);
    g_thread_join(thread);
    g_assert_cmpuint(peer.zeros, ==, 0);
}

/* Half a frame of the connection before is flushed with zeros, and only then. */
static void test_talk_flush(void)
{
    struct peer peer = {.deaf_hellos = 1};
    GThread *thread;
    struct sp_boot_talk *talk = talk_with(&peer, &thread);
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_boot_talk_hello(talk, "sbx_test", true, 5000, &error));
    g_assert_no_error(error);
    sp_boot_talk_free(talk);
    g_thread_join(thread);
    g_assert_cmpuint(peer.zeros, ==, 65552);
}

static void test_talk_refused(void)
{
    struct peer peer = {.refuse = true};
    GThread *thread;
    struct sp_boot_talk *talk = talk_with(&peer, &thread);
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_boot_talk_hello(talk, "sbx_test", true, 5000, &error));
    const char *argv[] = {"/bin/true", NULL};
    g_assert_false(sp_boot_talk_run(talk, argv, NULL, 5000, NULL, NULL, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    g_assert_nonnull(strstr(error->message, "not_identified"));
    sp_boot_talk_free(talk);
    g_thread_join(thread);
}

static void test_talk_dead(void)
{
    int fds[2];
    pair(fds);
    struct sp_boot_talk *talk = sp_boot_talk_new(fds[0]);
    g_autoptr(GError) error = NULL;
    int64_t start_ms = sp_time_monotonic_ms();
    g_assert_false(sp_boot_talk_hello(talk, "sbx_test", false, 200, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_assert_cmpint(sp_time_monotonic_ms() - start_ms, >=, 199);
    g_clear_error(&error);
    close(fds[1]);
    g_assert_false(sp_boot_talk_quiesce(talk, 5000, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    sp_boot_talk_free(talk);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/microvm/qmp/order", test_qmp_order);
    g_test_add_func("/microvm/qmp/fd", test_qmp_fd);
    g_test_add_func("/microvm/qmp/hostile", test_qmp_hostile);
    g_test_add_func("/microvm/endpoint", test_endpoint);
    g_test_add_func("/microvm/talk/all", test_talk);
    g_test_add_func("/microvm/talk/flush", test_talk_flush);
    g_test_add_func("/microvm/talk/refused", test_talk_refused);
    g_test_add_func("/microvm/talk/dead", test_talk_dead);
    return g_test_run();
}
