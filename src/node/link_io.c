/* The bytes of a link: the outgoing buffer, reading, cutting into frames, the opening. */
#include "node/link_private.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"

/* A half frame that the agent may be waiting for is completed by a header and a largest payload. */
#define LINK_FILLER_BYTES (SP_FRAME_HEADER_BYTES + SP_FRAME_MAX_PAYLOAD)

void sp_link_put_raw(struct sp_link *link, const void *bytes, size_t len)
{
    if (link->fd < 0 || link->send_failed)
        return;
    if (link->out_at > 0 && link->out_at == link->out_len)
        link->out_at = link->out_len = 0;
    if (link->out_len - link->out_at + len > LINK_OUT_MAX) {
        link->send_failed = true; /* the thread takes the connection down */
        return;
    }
    if (link->out_len + len > link->out_size) {
        if (link->out_at > 0)
            memmove(link->out, link->out + link->out_at, link->out_len - link->out_at);
        link->out_len -= link->out_at;
        link->out_at = 0;
        if (link->out_len + len > link->out_size) {
            link->out_size = MAX(link->out_size * 2, link->out_len + len);
            link->out = g_realloc(link->out, link->out_size);
        }
    }
    memcpy(link->out + link->out_len, bytes, len);
    link->out_len += len;
}

static void put_frame(struct sp_link *link, uint8_t type, uint32_t tag, const uint8_t *payload,
                      size_t len)
{
    uint8_t header[SP_FRAME_HEADER_BYTES];
    sp_frame_header_encode(
        &(struct sp_frame_header){.type = type, .payload_len = (uint32_t)len, .tag = tag}, header);
    sp_link_put_raw(link, header, sizeof(header));
    if (len > 0)
        sp_link_put_raw(link, payload, len);
}

void sp_link_put(struct sp_link *link, uint8_t type, uint32_t tag, const uint8_t *payload,
                 size_t len)
{
    if (link->state == SP_LINK_READY)
        put_frame(link, type, tag, payload, len);
}

void sp_link_flush(struct sp_link *link)
{
    bool was_full = link->out_len - link->out_at > LINK_OUT_ROOM;
    while (link->fd >= 0 && !link->send_failed && link->out_at < link->out_len) {
        ssize_t n = send(link->fd, link->out + link->out_at, link->out_len - link->out_at,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0) {
            link->out_at += (size_t)n;
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            link->send_failed = true;
        break;
    }
    if (link->out_at == link->out_len) {
        link->out_at = link->out_len = 0;
        if (link->out_size > LINK_OUT_ROOM) {
            link->out_size = LINK_OUT_ROOM / 16;
            link->out = g_realloc(link->out, link->out_size);
        }
    }
    if (link->send_failed || link->out_len > 0) {
        uint64_t one = 1; /* the thread waits for room, or takes the connection down */
        ssize_t n = write(link->wake_fd, &one, sizeof(one));
        (void)n; /* EAGAIN: it is to wake up already */
    }
    if (was_full && link->out_len - link->out_at <= LINK_OUT_ROOM)
        g_cond_broadcast(&link->changed);
}

bool sp_link_fill(struct sp_link *link, GError **error)
{
    for (;;) {
        ssize_t n =
            recv(link->fd, link->in + link->in_len, LINK_IN_BYTES - link->in_len, MSG_DONTWAIT);
        if (n > 0) {
            link->in_len += (size_t)n;
            link->last_rx_us = sp_time_monotonic_us();
            return true;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return true;
        if (n == 0)
            g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the agent closed the link");
        else
            sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "reading the link");
        return false;
    }
}

void sp_link_send_hello(struct sp_link *link, bool after_silence)
{
    if (after_silence) {
        g_autofree uint8_t *filler = g_malloc0(LINK_FILLER_BYTES);
        sp_link_put_raw(link, filler, LINK_FILLER_BYTES);
    }
    uint8_t payload[512];
    struct sp_pack p;
    struct sp_msg_hello hello = {
        .version_min = SP_AGENT_VERSION,
        .version_max = SP_AGENT_VERSION,
        .max_event_data = link->spec.max_event_data,
        .sandbox_id = sp_span_of(link->sandbox_id),
    };
    /* A new nonce each time: only the answer to the last HELLO ends the search. */
    sp_random_bytes(link->nonce, sizeof(link->nonce));
    memcpy(hello.nonce, link->nonce, sizeof(hello.nonce));
    sp_pack_init(&p, payload, sizeof(payload));
    sp_msg_hello_encode(&p, &hello);
    put_frame(link, SP_FRAME_HELLO, 0, payload, p.len);
    link->hello_sent_us = sp_time_monotonic_us();
    sp_link_flush(link);
}

static bool on_hello_ok(struct sp_link *link, const struct sp_msg_hello_ok *ok, GError **error)
{
    if (ok->version != SP_AGENT_VERSION) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "the agent speaks version %u only",
                    ok->version);
        return false;
    }
    if (link->instance_known && memcmp(link->instance, ok->instance, sizeof(ok->instance)) != 0) {
        /* Its sessions are gone with it; a START that is repeated now would run a command twice. */
        sp_link_end_all(link, "the agent of the sandbox was started again");
    }
    memcpy(link->instance, ok->instance, sizeof(link->instance));
    link->instance_known = true;
    link->identified = ok->identified;
    link->features = ok->features;
    link->state = SP_LINK_READY;
    link->connects++;
    link->error[0] = '\0';
    link->ping_sent_us = 0;
    sp_link_resume(link);
    g_cond_broadcast(&link->changed);
    return true;
}

/* Looks for the HELLO_OK with our nonce in left-overs of an earlier connection; the number of bytes
 * that are done with. A header that is only half here does not hide a whole one behind it: what the
 * sandbox has printed may look like a header. */
static size_t find_hello_ok(struct sp_link *link, const uint8_t *bytes, size_t len, bool *ret_found,
                            GError **error)
{
    size_t at = 0, keep = SIZE_MAX;
    *ret_found = false;
    for (; at < len; at++) {
        at += sp_frame_find_resync(bytes + at, len - at, SP_FRAME_HELLO_OK);
        struct sp_frame_header header;
        if (len - at < SP_FRAME_HEADER_BYTES) {
            keep = MIN(keep, at);
            break;
        }
        if (!sp_frame_header_decode(bytes + at, &header))
            continue;
        if (len - at < SP_FRAME_HEADER_BYTES + header.payload_len) {
            keep = MIN(keep, at);
            continue;
        }
        struct sp_msg_hello_ok ok;
        if (sp_msg_hello_ok_decode(bytes + at + SP_FRAME_HEADER_BYTES, header.payload_len, &ok) &&
            memcmp(ok.nonce, link->nonce, sizeof(ok.nonce)) == 0) {
            *ret_found = on_hello_ok(link, &ok, error);
            return at + SP_FRAME_HEADER_BYTES + header.payload_len;
        }
    }
    return MIN(keep, len);
}

bool sp_link_parse(struct sp_link *link, GError **error)
{
    size_t at = 0;
    bool fine = true;
    if (link->state != SP_LINK_READY) {
        GError *refusal = NULL;
        bool found;
        at = find_hello_ok(link, link->in, link->in_len, &found, &refusal);
        if (refusal) {
            g_propagate_error(error, refusal);
            fine = false;
        }
    }
    while (fine && link->state == SP_LINK_READY && link->in_len - at >= SP_FRAME_HEADER_BYTES) {
        struct sp_frame_header header;
        if (!sp_frame_header_decode(link->in + at, &header)) {
            g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "a bad frame header");
            fine = false;
            break;
        }
        if (link->in_len - at < SP_FRAME_HEADER_BYTES + header.payload_len)
            break;
        fine = sp_link_dispatch(link, &header, link->in + at + SP_FRAME_HEADER_BYTES, error);
        at += SP_FRAME_HEADER_BYTES + header.payload_len;
    }
    memmove(link->in, link->in + at, link->in_len - at);
    link->in_len -= at;
    return fine;
}

void sp_link_drop_connection(struct sp_link *link)
{
    if (link->fd >= 0)
        close(link->fd);
    link->fd = -1;
    link->send_failed = false;
    link->out_at = link->out_len = link->in_len = 0;
    if (link->state == SP_LINK_READY) {
        link->state = SP_LINK_CONNECTING;
        link->down_since_us = sp_time_monotonic_us();
    }
    g_cond_broadcast(&link->changed);
}
