#include "driver/microvm/boot_talk.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"
#include "wire/agent_frame.h"
#include "wire/agent_msg.h"

#define FLUSH_AFTER_MS 500
#define EVENT_DATA 4096u
#define CREDIT_BYTES (1024u * 1024u)
#define OUTPUT_BYTES 4096u
#define BUFFER_BYTES (SP_FRAME_HEADER_BYTES + SP_FRAME_MAX_PAYLOAD)

struct sp_boot_talk {
    int fd;
    uint32_t last_tag;
    size_t len;  /* bytes in the buffer */
    size_t used; /* of them, those of the frame that was returned last */
    uint8_t buffer[BUFFER_BYTES];
};

struct frame {
    struct sp_frame_header header;
    const uint8_t *payload; /* in the buffer; until the next read */
};

struct sp_boot_talk *sp_boot_talk_new(int fd)
{
    struct sp_boot_talk *talk = g_new0(struct sp_boot_talk, 1);
    talk->fd = fd;
    return talk;
}

void sp_boot_talk_free(struct sp_boot_talk *talk)
{
    if (!talk)
        return;
    if (talk->fd >= 0)
        close(talk->fd);
    g_free(talk);
}

int sp_boot_talk_steal_fd(struct sp_boot_talk *talk)
{
    int fd = talk->fd;
    talk->fd = -1;
    return fd;
}

static bool wait_ready(struct sp_boot_talk *talk, short what, int64_t deadline_ms, GError **error)
{
    for (;;) {
        int64_t left = deadline_ms - sp_time_monotonic_ms();
        struct pollfd p = {.fd = talk->fd, .events = what};
        int n = poll(&p, 1, (int)CLAMP(left, 0, G_MAXINT));
        if (n > 0)
            return true;
        if (n < 0 && errno == EINTR)
            continue;
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the agent does not answer");
        return false;
    }
}

static bool send_bytes(struct sp_boot_talk *talk, const uint8_t *bytes, size_t len,
                       int64_t deadline_ms, GError **error)
{
    while (len > 0) {
        ssize_t n = send(talk->fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) {
            bytes += n;
            len -= (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            if (!wait_ready(talk, POLLOUT, deadline_ms, error))
                return false;
        } else if (n < 0 && errno != EINTR) {
            sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "agent link");
            return false;
        }
    }
    return true;
}

static bool send_frame(struct sp_boot_talk *talk, uint8_t type, uint32_t tag,
                       const struct sp_pack *payload, int64_t deadline_ms, GError **error)
{
    g_assert(!payload->overflow);
    struct sp_frame_header header = {
        .type = type,
        .payload_len = (uint32_t)payload->len,
        .tag = tag,
    };
    uint8_t head[SP_FRAME_HEADER_BYTES];
    sp_frame_header_encode(&header, head);
    return send_bytes(talk, head, sizeof head, deadline_ms, error) &&
           send_bytes(talk, payload->bytes, payload->len, deadline_ms, error);
}

static bool read_some(struct sp_boot_talk *talk, int64_t deadline_ms, GError **error)
{
    for (;;) {
        ssize_t n =
            recv(talk->fd, talk->buffer + talk->len, BUFFER_BYTES - talk->len, MSG_DONTWAIT);
        if (n > 0) {
            talk->len += (size_t)n;
            return true;
        }
        if (n == 0) {
            g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the VM closed the agent link");
            return false;
        }
        if (errno == EAGAIN) {
            if (!wait_ready(talk, POLLIN, deadline_ms, error))
                return false;
        } else if (errno != EINTR) {
            sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "agent link");
            return false;
        }
    }
}

static void drop(struct sp_boot_talk *talk, size_t n)
{
    talk->len -= n;
    memmove(talk->buffer, talk->buffer + n, talk->len);
}

/* The next frame. Bytes that are no frame are an error, or skipped up to a HELLO_OK while
 * resyncing. */
static bool next_frame(struct sp_boot_talk *talk, bool resync, int64_t deadline_ms,
                       struct frame *ret, GError **error)
{
    drop(talk, talk->used);
    talk->used = 0;
    for (;;) {
        if (talk->len >= SP_FRAME_HEADER_BYTES) {
            if (!sp_frame_header_decode(talk->buffer, &ret->header)) {
                if (!resync) {
                    g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "malformed frame of the agent");
                    return false;
                }
                size_t skip =
                    sp_frame_find_resync(talk->buffer + 1, talk->len - 1, SP_FRAME_HELLO_OK);
                drop(talk, skip + 1);
                continue;
            }
            size_t whole = SP_FRAME_HEADER_BYTES + ret->header.payload_len;
            if (talk->len >= whole) {
                talk->used = whole;
                ret->payload = talk->buffer + SP_FRAME_HEADER_BYTES;
                return true;
            }
        }
        if (!read_some(talk, deadline_ms, error))
            return false;
    }
}

/* Sends a request and waits for the reply with its tag. ERROR becomes a GError. */
static bool request(struct sp_boot_talk *talk, uint8_t type, const struct sp_pack *payload,
                    uint8_t reply, int64_t deadline_ms, struct frame *ret, GError **error)
{
    uint32_t tag = ++talk->last_tag;
    if (!send_frame(talk, type, tag, payload, deadline_ms, error))
        return false;
    for (;;) {
        if (!next_frame(talk, false, deadline_ms, ret, error))
            return false;
        if (ret->header.tag != tag)
            continue;
        if (ret->header.type == reply)
            return true;
        struct sp_msg_error refused;
        if (ret->header.type == SP_FRAME_ERROR &&
            sp_msg_error_decode(ret->payload, ret->header.payload_len, &refused))
            g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                        "the agent refused request %u: %.*s: %.*s", type, (int)refused.code.len,
                        (const char *)refused.code.bytes, (int)refused.message.len,
                        (const char *)refused.message.bytes);
        else
            g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "wrong answer of the agent");
        return false;
    }
}

static bool send_hello(struct sp_boot_talk *talk, const char *sandbox_id, const uint8_t *nonce,
                       int64_t deadline_ms, GError **error)
{
    uint8_t bytes[512];
    struct sp_pack p;
    sp_pack_init(&p, bytes, sizeof bytes);
    struct sp_msg_hello hello = {
        .version_min = SP_AGENT_VERSION,
        .version_max = SP_AGENT_VERSION,
        .max_event_data = EVENT_DATA,
        .sandbox_id = sp_span_of(sandbox_id),
    };
    memcpy(hello.nonce, nonce, sizeof hello.nonce);
    sp_msg_hello_encode(&p, &hello);
    return send_frame(talk, SP_FRAME_HELLO, ++talk->last_tag, &p, deadline_ms, error);
}

static bool await_hello_ok(struct sp_boot_talk *talk, const uint8_t *nonce, int64_t deadline_ms,
                           GError **error)
{
    for (;;) {
        struct frame frame;
        struct sp_msg_hello_ok ok;
        if (!next_frame(talk, true, deadline_ms, &frame, error))
            return false;
        if (frame.header.type != SP_FRAME_HELLO_OK ||
            !sp_msg_hello_ok_decode(frame.payload, frame.header.payload_len, &ok) ||
            memcmp(ok.nonce, nonce, sizeof ok.nonce) != 0)
            continue;
        if (ok.version == SP_AGENT_VERSION)
            return true;
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "the agent speaks another version");
        return false;
    }
}

bool sp_boot_talk_hello(struct sp_boot_talk *talk, const char *sandbox_id, bool again,
                        int64_t timeout_ms, GError **error)
{
    static const uint8_t zeros[BUFFER_BYTES];
    int64_t deadline_ms = sp_time_monotonic_ms() + timeout_ms;
    /* One nonce for all tries: a late answer to the first is as good. */
    uint8_t nonce[SP_MSG_NONCE_BYTES];
    sp_random_bytes(nonce, sizeof nonce);
    for (;;) {
        g_autoptr(GError) cause = NULL;
        int64_t now_ms = sp_time_monotonic_ms();
        int64_t until_ms = again ? MIN(now_ms + FLUSH_AFTER_MS, deadline_ms) : deadline_ms;
        if (!send_hello(talk, sandbox_id, nonce, deadline_ms, error))
            return false;
        if (await_hello_ok(talk, nonce, until_ms, &cause))
            return true;
        if (!g_error_matches(cause, SP_ERROR, SP_ERROR_UNAVAILABLE) || until_ms >= deadline_ms ||
            sp_time_monotonic_ms() < until_ms) {
            g_propagate_error(error, g_steal_pointer(&cause));
            return false;
        }
        if (!send_bytes(talk, zeros, sizeof zeros, deadline_ms, error))
            return false;
    }
}

bool sp_boot_talk_identity(struct sp_boot_talk *talk, int64_t timeout_ms, GError **error)
{
    uint8_t entropy[32];
    sp_random_bytes(entropy, sizeof entropy);
    struct sp_msg_identity identity = {
        .realtime_ns = (uint64_t)sp_time_now_ms() * 1000000u,
        .entropy = {entropy, sizeof entropy},
        .hostname = sp_span_of("template"),
        .machine_id = sp_span_of("00000000000000000000000000000000"),
    };
    uint8_t bytes[1024];
    struct sp_pack p;
    sp_pack_init(&p, bytes, sizeof bytes);
    sp_msg_identity_encode(&p, &identity);
    struct frame frame;
    return request(talk, SP_FRAME_IDENTITY, &p, SP_FRAME_OK, sp_time_monotonic_ms() + timeout_ms,
                   &frame, error);
}

bool sp_boot_talk_hold(struct sp_boot_talk *talk, bool sync, int64_t timeout_ms, GError **error)
{
    struct sp_msg_hold hold = {.flags = sync ? SP_HOLD_SYNC : 0};
    uint8_t bytes[64];
    struct sp_pack p;
    sp_pack_init(&p, bytes, sizeof bytes);
    sp_msg_hold_encode(&p, &hold);
    struct frame frame;
    return request(talk, SP_FRAME_HOLD, &p, SP_FRAME_OK, sp_time_monotonic_ms() + timeout_ms,
                   &frame, error);
}

bool sp_boot_talk_release(struct sp_boot_talk *talk, int64_t timeout_ms, GError **error)
{
    struct sp_msg_release release = {.realtime_ns = (uint64_t)sp_time_now_ms() * 1000000u};
    uint8_t bytes[64];
    struct sp_pack p;
    sp_pack_init(&p, bytes, sizeof bytes);
    sp_msg_release_encode(&p, &release);
    struct frame frame;
    return request(talk, SP_FRAME_RELEASE, &p, SP_FRAME_OK, sp_time_monotonic_ms() + timeout_ms,
                   &frame, error);
}

bool sp_boot_talk_quiesce(struct sp_boot_talk *talk, int64_t timeout_ms, GError **error)
{
    struct sp_pack p;
    uint8_t none;
    sp_pack_init(&p, &none, 0);
    struct frame frame;
    return request(talk, SP_FRAME_QUIESCE, &p, SP_FRAME_OK, sp_time_monotonic_ms() + timeout_ms,
                   &frame, error);
}

/* Reads EVENTs of a subscription up to the last one. */
static bool await_end(struct sp_boot_talk *talk, uint32_t subscription, int64_t deadline_ms,
                      GString *output, int *ret_exit_code, GError **error)
{
    for (;;) {
        struct frame frame;
        struct sp_msg_event event;
        if (!next_frame(talk, false, deadline_ms, &frame, error))
            return false;
        if (frame.header.type != SP_FRAME_EVENT || frame.header.tag != subscription)
            continue;
        if (!sp_msg_event_decode(frame.payload, frame.header.payload_len, &event)) {
            g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "malformed event of the agent");
            return false;
        }
        bool text = event.kind == SP_EVENT_STDOUT || event.kind == SP_EVENT_STDERR;
        if (text && output && output->len < OUTPUT_BYTES)
            g_string_append_len(output, (const char *)event.data.bytes,
                                (gssize)MIN(event.data.len, OUTPUT_BYTES - output->len));
        if (event.kind != SP_EVENT_EXITED && event.kind != SP_EVENT_ERROR)
            continue;
        if (ret_exit_code)
            *ret_exit_code = event.kind == SP_EVENT_EXITED ? event.exit.exit_code : -1;
        return true;
    }
}

static bool start(struct sp_boot_talk *talk, struct sp_span session, const char *const *argv,
                  const char *user, int64_t timeout_ms, int64_t deadline_ms, GError **error)
{
    struct sp_msg_start start = {
        .session_id = session,
        .argv = {.count = g_strv_length((char **)argv), .strings = argv},
        .cwd = sp_span_of("/"),
        .user = sp_span_of(user),
        .timeout_ms = (uint64_t)timeout_ms,
        .overflow = SP_OVERFLOW_DROP,
    };
    uint8_t bytes[8192];
    struct sp_pack p;
    sp_pack_init(&p, bytes, sizeof bytes);
    sp_msg_start_encode(&p, &start);
    struct frame frame;
    return request(talk, SP_FRAME_START, &p, SP_FRAME_STARTED, deadline_ms, &frame, error);
}

bool sp_boot_talk_start(struct sp_boot_talk *talk, const char *session, const char *const *argv,
                        const char *user, int64_t timeout_ms, GError **error)
{
    return start(talk, sp_span_of(session), argv, user, 0, sp_time_monotonic_ms() + timeout_ms,
                 error);
}

bool sp_boot_talk_run(struct sp_boot_talk *talk, const char *const *argv, const char *user,
                      int64_t timeout_ms, GString *output, int *ret_exit_code, GError **error)
{
    int64_t deadline_ms = sp_time_monotonic_ms() + timeout_ms;
    struct sp_span session = sp_span_of("boot");
    uint8_t bytes[256];
    struct sp_pack p;
    struct frame frame;
    if (!start(talk, session, argv, user, timeout_ms, deadline_ms, error))
        return false;

    struct sp_msg_subscribe subscribe = {.session_id = session, .credit_bytes = CREDIT_BYTES};
    sp_pack_init(&p, bytes, sizeof bytes);
    sp_msg_subscribe_encode(&p, &subscribe);
    if (!request(talk, SP_FRAME_SUBSCRIBE, &p, SP_FRAME_SUBSCRIBED, deadline_ms, &frame, error) ||
        !await_end(talk, frame.header.tag, deadline_ms, output, ret_exit_code, error))
        return false;

    sp_pack_init(&p, bytes, sizeof bytes);
    sp_msg_ref_encode(&p, session);
    return request(talk, SP_FRAME_FORGET, &p, SP_FRAME_OK, deadline_ms, &frame, error);
}
