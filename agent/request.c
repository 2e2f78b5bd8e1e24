#include "request.h"

#include "hold.h"
#include "identity.h"
#include "link.h"
#include "procs.h"
#include "pty.h"
#include "session.h"
#include "subscription.h"

/* A handler answers, or returns false for a payload that is not what its type says. */
typedef bool handler_fn(struct agent *a, uint32_t tag, const uint8_t *bytes, size_t len);

/* Finds the session or answers not_found. */
static struct session *need_session(struct agent *a, uint32_t tag, struct sp_span id)
{
    struct session *s = session_find(a, id);
    if (!s)
        link_reply_error(&a->link, tag, "not_found", "no such session");
    return s;
}

static bool on_ping(struct agent *a, uint32_t tag, const uint8_t *bytes, size_t len)
{
    if (len > SP_MSG_PING_MAX)
        return false;
    struct sp_pack p = link_begin(&a->link);
    sp_pack_rest(&p, bytes, len);
    link_commit(&a->link, SP_FRAME_PONG, tag, &p);
    return true;
}

static bool on_identity(struct agent *a, uint32_t tag, const uint8_t *bytes, size_t len)
{
    struct sp_msg_identity m;
    if (!sp_msg_identity_decode(bytes, len, &m))
        return false;
    identity_set(a, tag, &m);
    return true;
}

static bool on_quiesce(struct agent *a, uint32_t tag, const uint8_t *bytes, size_t len)
{
    (void)bytes;
    if (len > 0)
        return false;
    identity_quiesce(a, tag);
    return true;
}

static bool on_hold(struct agent *a, uint32_t tag, const uint8_t *bytes, size_t len)
{
    struct sp_msg_hold m;
    if (!sp_msg_hold_decode(bytes, len, &m))
        return false;
    hold_begin(a, tag, &m);
    return true;
}

static bool on_release(struct agent *a, uint32_t tag, const uint8_t *bytes, size_t len)
{
    struct sp_msg_release m;
    if (!sp_msg_release_decode(bytes, len, &m))
        return false;
    hold_release(a, tag, &m);
    return true;
}

static bool on_start(struct agent *a, uint32_t tag, const uint8_t *bytes, size_t len)
{
    struct sp_msg_start m;
    if (!sp_msg_start_decode(bytes, len, &m))
        return false;
    session_start(a, tag, &m);
    return true;
}

static bool on_stat(struct agent *a, uint32_t tag, const uint8_t *bytes, size_t len)
{
    struct sp_span id;
    if (!sp_msg_ref_decode(bytes, len, &id))
        return false;
    struct session *s = need_session(a, tag, id);
    if (s)
        session_reply_state(a, tag, s);
    return true;
}

static bool on_signal(struct agent *a, uint32_t tag, const uint8_t *bytes, size_t len)
{
    struct sp_msg_signal m;
    if (!sp_msg_signal_decode(bytes, len, &m))
        return false;
    session_signal(a, tag, &m);
    return true;
}

static bool on_forget(struct agent *a, uint32_t tag, const uint8_t *bytes, size_t len)
{
    struct sp_span id;
    if (!sp_msg_ref_decode(bytes, len, &id))
        return false;
    struct session *s = need_session(a, tag, id);
    if (s) {
        session_forget(a, s);
        link_reply_ok(&a->link, tag);
    }
    return true;
}

static bool on_processes(struct agent *a, uint32_t tag, const uint8_t *bytes, size_t len)
{
    (void)bytes;
    if (len > 0)
        return false;
    procs_reply(a, tag);
    return true;
}

static bool on_resize(struct agent *a, uint32_t tag, const uint8_t *bytes, size_t len)
{
    struct sp_msg_resize m;
    if (!sp_msg_resize_decode(bytes, len, &m))
        return false;
    struct session *s = need_session(a, tag, m.session_id);
    if (!s)
        return true;
    if (s->terminal_fd >= 0 && pty_resize(s->terminal_fd, m.rows, m.cols))
        link_reply_ok(&a->link, tag);
    else
        link_reply_error(&a->link, tag, "not_a_terminal", "the session has no terminal");
    return true;
}

static bool on_subscribe(struct agent *a, uint32_t tag, const uint8_t *bytes, size_t len)
{
    struct sp_msg_subscribe m;
    if (!sp_msg_subscribe_decode(bytes, len, &m))
        return false;
    subscription_add(a, tag, &m);
    return true;
}

static bool on_unsubscribe(struct agent *a, uint32_t tag, const uint8_t *bytes, size_t len)
{
    (void)bytes;
    (void)len;
    subscription_remove(a, tag);
    return true; /* never answered */
}

static bool on_credit(struct agent *a, uint32_t tag, const uint8_t *bytes, size_t len)
{
    struct sp_msg_credit m;
    if (sp_msg_credit_decode(bytes, len, &m))
        subscription_credit(a, tag, &m);
    return true; /* never answered */
}

static bool on_stdin(struct agent *a, uint32_t tag, const uint8_t *bytes, size_t len)
{
    struct sp_msg_stdin m;
    if (!sp_msg_stdin_decode(bytes, len, &m))
        return false;
    struct session *s = need_session(a, tag, m.session_id);
    if (s)
        input_data(a, tag, s, &m);
    return true;
}

static bool on_stdin_close(struct agent *a, uint32_t tag, const uint8_t *bytes, size_t len)
{
    struct sp_msg_stdin m;
    if (!sp_msg_stdin_close_decode(bytes, len, &m))
        return false;
    struct session *s = need_session(a, tag, m.session_id);
    if (s)
        input_close(a, tag, s, m.offset);
    return true;
}

static bool on_stdin_query(struct agent *a, uint32_t tag, const uint8_t *bytes, size_t len)
{
    struct sp_span id;
    if (!sp_msg_ref_decode(bytes, len, &id))
        return false;
    struct session *s = need_session(a, tag, id);
    if (s)
        input_query(a, tag, s);
    return true;
}

static const struct {
    uint8_t type;
    handler_fn *handle;
} handlers[] = {
    {SP_FRAME_PING, on_ping},
    {SP_FRAME_IDENTITY, on_identity},
    {SP_FRAME_QUIESCE, on_quiesce},
    {SP_FRAME_HOLD, on_hold},
    {SP_FRAME_RELEASE, on_release},
    {SP_FRAME_START, on_start},
    {SP_FRAME_SESSION_STAT, on_stat},
    {SP_FRAME_SIGNAL, on_signal},
    {SP_FRAME_FORGET, on_forget},
    {SP_FRAME_PROCESSES, on_processes},
    {SP_FRAME_RESIZE, on_resize},
    {SP_FRAME_SUBSCRIBE, on_subscribe},
    {SP_FRAME_UNSUBSCRIBE, on_unsubscribe},
    {SP_FRAME_CREDIT, on_credit},
    {SP_FRAME_STDIN, on_stdin},
    {SP_FRAME_STDIN_CLOSE, on_stdin_close},
    {SP_FRAME_STDIN_QUERY, on_stdin_query},
};

void request_handle(struct agent *a, const struct sp_frame_header *header, const uint8_t *payload)
{
    for (unsigned i = 0; i < sizeof handlers / sizeof handlers[0]; i++) {
        if (handlers[i].type != header->type)
            continue;
        if (!handlers[i].handle(a, header->tag, payload, header->payload_len))
            link_reply_error(&a->link, header->tag, "invalid", "malformed payload");
        return;
    }
    if (header->tag != 0 && header->type != SP_FRAME_PONG) /* tag 0 asks for no answer */
        link_reply_error(&a->link, header->tag, "unsupported", "unknown frame type");
}
