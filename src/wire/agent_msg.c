#include "wire/agent_msg.h"

/* --- shapes shared by several messages ------------------------------------------------------- */

static void pack_span(struct sp_pack *p, struct sp_span s)
{
    sp_pack_blob(p, s.bytes, s.len);
}

/* A string of min…max bytes. */
static struct sp_span unpack_str(struct sp_unpack *u, size_t min, size_t max)
{
    struct sp_span s = sp_unpack_str(u);
    if (s.len < min || s.len > max)
        u->bad = true;
    return s;
}

static struct sp_span unpack_session_id(struct sp_unpack *u)
{
    return unpack_str(u, 1, SP_MSG_SESSION_ID_MAX);
}

/* A number that must be at most max. */
static uint8_t unpack_small(struct sp_unpack *u, uint8_t max)
{
    uint8_t v = sp_unpack_u8(u);
    if (v > max)
        u->bad = true;
    return v;
}

static void unpack_bytes(struct sp_unpack *u, uint8_t *ret, size_t len)
{
    for (size_t i = 0; i < len; i++)
        ret[i] = sp_unpack_u8(u);
}

static void pack_list(struct sp_pack *p, const struct sp_msg_list *list)
{
    sp_pack_u32(p, list->count);
    if (!list->strings) {
        sp_pack_rest(p, list->raw.bytes, list->raw.len);
        return;
    }
    for (uint32_t i = 0; i < list->count; i++)
        sp_pack_str(p, list->strings[i]);
}

static struct sp_msg_list unpack_list(struct sp_unpack *u)
{
    struct sp_msg_list list = {.count = sp_unpack_u32(u)};
    if (list.count > SP_MSG_LIST_MAX)
        u->bad = true;
    size_t from = u->at;
    for (uint32_t i = 0; i < list.count && !u->bad; i++)
        (void)sp_unpack_str(u);
    if (u->bad)
        return (struct sp_msg_list){0};
    list.raw = (struct sp_span){u->bytes + from, u->at - from};
    return list;
}

bool sp_msg_list_next(const struct sp_msg_list *list, size_t *at, struct sp_span *ret)
{
    if (*at >= list->raw.len)
        return false;
    struct sp_unpack u;
    sp_unpack_init(&u, list->raw.bytes + *at, list->raw.len - *at);
    struct sp_span item = sp_unpack_str(&u);
    if (u.bad)
        return false;
    *at += u.at;
    *ret = item;
    return true;
}

/* Every item has a '=' behind at least one byte of name. */
static bool list_is_env(const struct sp_msg_list *list)
{
    struct sp_span item;
    for (size_t at = 0; sp_msg_list_next(list, &at, &item);) {
        const uint8_t *eq = item.len ? memchr(item.bytes, '=', item.len) : NULL;
        if (!eq || eq == item.bytes)
            return false;
    }
    return true;
}

static void pack_exit(struct sp_pack *p, const struct sp_msg_exit *m)
{
    sp_pack_i32(p, m->exit_code);
    sp_pack_i32(p, m->signal);
    sp_pack_u8(p, m->flags);
    sp_pack_u64(p, m->duration_us);
    sp_pack_u64(p, m->cpu_us);
    sp_pack_u64(p, m->peak_memory_bytes);
}

static struct sp_msg_exit unpack_exit(struct sp_unpack *u)
{
    struct sp_msg_exit m = {0};
    m.exit_code = sp_unpack_i32(u);
    m.signal = sp_unpack_i32(u);
    m.flags = sp_unpack_u8(u);
    m.duration_us = sp_unpack_u64(u);
    m.cpu_us = sp_unpack_u64(u);
    m.peak_memory_bytes = sp_unpack_u64(u);
    return m;
}

/* Hands over the message when the reader is at a clean end. */
#define DECODE_END(u, m, ret) return sp_unpack_done(&(u)) && (*(ret) = (m), true)

/* --- opening --------------------------------------------------------------------------------- */

void sp_msg_hello_encode(struct sp_pack *p, const struct sp_msg_hello *m)
{
    sp_pack_u32(p, m->version_min);
    sp_pack_u32(p, m->version_max);
    sp_pack_rest(p, m->nonce, sizeof m->nonce);
    sp_pack_u32(p, m->max_event_data);
    pack_span(p, m->sandbox_id);
}

bool sp_msg_hello_decode(const uint8_t *bytes, size_t len, struct sp_msg_hello *ret)
{
    struct sp_unpack u;
    struct sp_msg_hello m = {0};
    sp_unpack_init(&u, bytes, len);
    m.version_min = sp_unpack_u32(&u);
    m.version_max = sp_unpack_u32(&u);
    unpack_bytes(&u, m.nonce, sizeof m.nonce);
    m.max_event_data = sp_unpack_u32(&u);
    m.sandbox_id = unpack_str(&u, 0, SP_MSG_NAME_MAX);
    if (m.version_min > m.version_max || m.max_event_data < SP_MSG_EVENT_DATA_MIN ||
        m.max_event_data > SP_MSG_EVENT_DATA_MAX)
        return false;
    DECODE_END(u, m, ret);
}

void sp_msg_hello_ok_encode(struct sp_pack *p, const struct sp_msg_hello_ok *m)
{
    sp_pack_u32(p, m->version);
    sp_pack_rest(p, m->nonce, sizeof m->nonce);
    sp_pack_rest(p, m->instance, sizeof m->instance);
    sp_pack_u8(p, m->identified);
    sp_pack_u32(p, m->features);
    pack_span(p, m->build);
}

bool sp_msg_hello_ok_decode(const uint8_t *bytes, size_t len, struct sp_msg_hello_ok *ret)
{
    struct sp_unpack u;
    struct sp_msg_hello_ok m = {0};
    sp_unpack_init(&u, bytes, len);
    m.version = sp_unpack_u32(&u);
    unpack_bytes(&u, m.nonce, sizeof m.nonce);
    unpack_bytes(&u, m.instance, sizeof m.instance);
    m.identified = unpack_small(&u, 1);
    m.features = sp_unpack_u32(&u);
    m.build = unpack_str(&u, 0, SP_MSG_NAME_MAX);
    DECODE_END(u, m, ret);
}

void sp_msg_error_encode(struct sp_pack *p, const struct sp_msg_error *m)
{
    pack_span(p, m->code);
    pack_span(p, m->message);
}

static struct sp_msg_error unpack_error(struct sp_unpack *u)
{
    struct sp_msg_error m = {0};
    m.code = unpack_str(u, 1, SP_MSG_NAME_MAX);
    m.message = unpack_str(u, 0, SP_MSG_TEXT_MAX);
    return m;
}

bool sp_msg_error_decode(const uint8_t *bytes, size_t len, struct sp_msg_error *ret)
{
    struct sp_unpack u;
    sp_unpack_init(&u, bytes, len);
    struct sp_msg_error m = unpack_error(&u);
    DECODE_END(u, m, ret);
}

void sp_msg_identity_encode(struct sp_pack *p, const struct sp_msg_identity *m)
{
    sp_pack_u64(p, m->realtime_ns);
    pack_span(p, m->entropy);
    pack_span(p, m->hostname);
    pack_span(p, m->machine_id);
    pack_list(p, &m->env);
    sp_pack_u32(p, m->pids_max);
    sp_pack_u64(p, m->memory_reserve_bytes);
}

/* Every byte of s is one of allowed. */
static bool made_of(struct sp_span s, const char *allowed)
{
    for (size_t i = 0; i < s.len; i++) {
        if (!strchr(allowed, s.bytes[i]))
            return false;
    }
    return true;
}

/* The host name goes into /etc/hosts. */
static const char hostname_bytes[] =
    "-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

bool sp_msg_identity_decode(const uint8_t *bytes, size_t len, struct sp_msg_identity *ret)
{
    struct sp_unpack u;
    struct sp_msg_identity m = {0};
    sp_unpack_init(&u, bytes, len);
    m.realtime_ns = sp_unpack_u64(&u);
    m.entropy = sp_unpack_blob(&u);
    m.hostname = sp_unpack_str(&u);
    m.machine_id = sp_unpack_str(&u);
    m.env = unpack_list(&u);
    m.pids_max = sp_unpack_u32(&u);
    m.memory_reserve_bytes = sp_unpack_u64(&u);
    if ((m.entropy.len > 0 && m.entropy.len < 32) || m.entropy.len > SP_MSG_ENTROPY_MAX ||
        m.hostname.len > SP_MSG_HOSTNAME_MAX || !made_of(m.hostname, hostname_bytes) ||
        (m.machine_id.len != 0 && m.machine_id.len != 32) ||
        !made_of(m.machine_id, "0123456789abcdef") || !list_is_env(&m.env))
        return false;
    DECODE_END(u, m, ret);
}

/* --- sessions -------------------------------------------------------------------------------- */

void sp_msg_start_encode(struct sp_pack *p, const struct sp_msg_start *m)
{
    pack_span(p, m->session_id);
    pack_list(p, &m->argv);
    pack_list(p, &m->env);
    pack_span(p, m->cwd);
    pack_span(p, m->user);
    sp_pack_u8(p, m->stdin_open);
    sp_pack_u64(p, m->timeout_ms);
    sp_pack_u64(p, m->grace_ms);
    sp_pack_u8(p, m->overflow);
    sp_pack_u32(p, m->ring_bytes);
    sp_pack_u16(p, m->rows);
    sp_pack_u16(p, m->cols);
}

bool sp_msg_start_decode(const uint8_t *bytes, size_t len, struct sp_msg_start *ret)
{
    struct sp_unpack u;
    struct sp_msg_start m = {0};
    sp_unpack_init(&u, bytes, len);
    m.session_id = unpack_session_id(&u);
    m.argv = unpack_list(&u);
    m.env = unpack_list(&u);
    m.cwd = unpack_str(&u, 0, SP_MSG_PATH_MAX);
    m.user = unpack_str(&u, 0, SP_MSG_NAME_MAX);
    m.stdin_open = unpack_small(&u, 1);
    m.timeout_ms = sp_unpack_u64(&u);
    m.grace_ms = sp_unpack_u64(&u);
    m.overflow = unpack_small(&u, SP_OVERFLOW_DROP);
    m.ring_bytes = sp_unpack_u32(&u);
    m.rows = sp_unpack_u16(&u);
    m.cols = sp_unpack_u16(&u);
    struct sp_span name = {0};
    size_t at = 0;
    if (!sp_msg_list_next(&m.argv, &at, &name) || name.len == 0 || !list_is_env(&m.env) ||
        (m.rows == 0) != (m.cols == 0))
        return false;
    DECODE_END(u, m, ret);
}

void sp_msg_session_encode(struct sp_pack *p, const struct sp_msg_session *m)
{
    sp_pack_u8(p, m->state);
    sp_pack_i32(p, m->pid);
    sp_pack_u64(p, m->oldest_event);
    sp_pack_u64(p, m->next_event);
    pack_exit(p, &m->exit);
    sp_pack_u8(p, m->failed);
}

bool sp_msg_session_decode(const uint8_t *bytes, size_t len, struct sp_msg_session *ret)
{
    struct sp_unpack u;
    struct sp_msg_session m = {0};
    sp_unpack_init(&u, bytes, len);
    m.state = unpack_small(&u, SP_MSG_SESSION_ENDED);
    m.pid = sp_unpack_i32(&u);
    m.oldest_event = sp_unpack_u64(&u);
    m.next_event = sp_unpack_u64(&u);
    m.exit = unpack_exit(&u);
    m.failed = unpack_small(&u, 1);
    if (m.state < SP_MSG_SESSION_RUNNING || m.oldest_event < 1 || m.oldest_event > m.next_event)
        return false;
    DECODE_END(u, m, ret);
}

void sp_msg_ref_encode(struct sp_pack *p, struct sp_span session_id)
{
    pack_span(p, session_id);
}

bool sp_msg_ref_decode(const uint8_t *bytes, size_t len, struct sp_span *ret_session_id)
{
    struct sp_unpack u;
    sp_unpack_init(&u, bytes, len);
    struct sp_span id = unpack_session_id(&u);
    DECODE_END(u, id, ret_session_id);
}

void sp_msg_signal_encode(struct sp_pack *p, const struct sp_msg_signal *m)
{
    pack_span(p, m->session_id);
    sp_pack_i32(p, m->signal);
    sp_pack_u8(p, m->scope);
}

bool sp_msg_signal_decode(const uint8_t *bytes, size_t len, struct sp_msg_signal *ret)
{
    struct sp_unpack u;
    struct sp_msg_signal m = {0};
    sp_unpack_init(&u, bytes, len);
    m.session_id = unpack_session_id(&u);
    m.signal = sp_unpack_i32(&u);
    m.scope = unpack_small(&u, SP_SIGNAL_SESSION);
    if (m.signal < 1 || m.signal > 64)
        return false;
    DECODE_END(u, m, ret);
}

void sp_msg_process_list_encode(struct sp_pack *p, uint8_t truncated, uint32_t count)
{
    sp_pack_u8(p, truncated);
    sp_pack_u32(p, count);
}

void sp_msg_process_encode(struct sp_pack *p, const struct sp_msg_process *m)
{
    pack_span(p, m->session_id);
    sp_pack_i32(p, m->pid);
    pack_span(p, m->user);
    pack_list(p, &m->argv);
    sp_pack_u64(p, m->started_realtime_ms);
    sp_pack_u64(p, m->cpu_ms);
    sp_pack_u64(p, m->rss_bytes);
}

static struct sp_msg_process unpack_process(struct sp_unpack *u)
{
    struct sp_msg_process m = {0};
    m.session_id = unpack_session_id(u);
    m.pid = sp_unpack_i32(u);
    m.user = unpack_str(u, 0, SP_MSG_NAME_MAX);
    m.argv = unpack_list(u);
    m.started_realtime_ms = sp_unpack_u64(u);
    m.cpu_ms = sp_unpack_u64(u);
    m.rss_bytes = sp_unpack_u64(u);
    return m;
}

bool sp_msg_process_list_decode(const uint8_t *bytes, size_t len, struct sp_msg_process_list *ret)
{
    struct sp_unpack u;
    struct sp_msg_process_list m = {0};
    sp_unpack_init(&u, bytes, len);
    m.truncated = unpack_small(&u, 1);
    m.count = sp_unpack_u32(&u);
    size_t from = u.at;
    for (uint32_t i = 0; i < m.count && !u.bad; i++)
        (void)unpack_process(&u);
    if (u.bad)
        return false;
    m.raw = (struct sp_span){bytes + from, u.at - from};
    DECODE_END(u, m, ret);
}

bool sp_msg_process_next(const struct sp_msg_process_list *list, size_t *at,
                         struct sp_msg_process *ret)
{
    if (*at >= list->raw.len)
        return false;
    struct sp_unpack u;
    sp_unpack_init(&u, list->raw.bytes + *at, list->raw.len - *at);
    struct sp_msg_process m = unpack_process(&u);
    if (u.bad)
        return false;
    *at += u.at;
    *ret = m;
    return true;
}

void sp_msg_resize_encode(struct sp_pack *p, const struct sp_msg_resize *m)
{
    pack_span(p, m->session_id);
    sp_pack_u16(p, m->rows);
    sp_pack_u16(p, m->cols);
}

bool sp_msg_resize_decode(const uint8_t *bytes, size_t len, struct sp_msg_resize *ret)
{
    struct sp_unpack u;
    struct sp_msg_resize m = {0};
    sp_unpack_init(&u, bytes, len);
    m.session_id = unpack_session_id(&u);
    m.rows = sp_unpack_u16(&u);
    m.cols = sp_unpack_u16(&u);
    if (m.rows == 0 || m.cols == 0)
        return false;
    DECODE_END(u, m, ret);
}

/* --- events ---------------------------------------------------------------------------------- */

void sp_msg_subscribe_encode(struct sp_pack *p, const struct sp_msg_subscribe *m)
{
    pack_span(p, m->session_id);
    sp_pack_u64(p, m->after_event);
    sp_pack_u64(p, m->credit_bytes);
}

bool sp_msg_subscribe_decode(const uint8_t *bytes, size_t len, struct sp_msg_subscribe *ret)
{
    struct sp_unpack u;
    struct sp_msg_subscribe m = {0};
    sp_unpack_init(&u, bytes, len);
    m.session_id = unpack_session_id(&u);
    m.after_event = sp_unpack_u64(&u);
    m.credit_bytes = sp_unpack_u64(&u);
    DECODE_END(u, m, ret);
}

void sp_msg_subscribed_encode(struct sp_pack *p, const struct sp_msg_subscribed *m)
{
    sp_pack_u64(p, m->oldest_event);
    sp_pack_u64(p, m->next_event);
    sp_pack_u64(p, m->first_event);
    sp_pack_u8(p, m->gap);
}

bool sp_msg_subscribed_decode(const uint8_t *bytes, size_t len, struct sp_msg_subscribed *ret)
{
    struct sp_unpack u;
    struct sp_msg_subscribed m = {0};
    sp_unpack_init(&u, bytes, len);
    m.oldest_event = sp_unpack_u64(&u);
    m.next_event = sp_unpack_u64(&u);
    m.first_event = sp_unpack_u64(&u);
    m.gap = unpack_small(&u, 1);
    if (m.oldest_event < 1 || m.oldest_event > m.next_event || m.first_event < m.oldest_event ||
        m.first_event > m.next_event)
        return false;
    DECODE_END(u, m, ret);
}

void sp_msg_credit_encode(struct sp_pack *p, const struct sp_msg_credit *m)
{
    sp_pack_u64(p, m->credit_bytes);
    sp_pack_u64(p, m->acked_event);
}

bool sp_msg_credit_decode(const uint8_t *bytes, size_t len, struct sp_msg_credit *ret)
{
    struct sp_unpack u;
    struct sp_msg_credit m = {0};
    sp_unpack_init(&u, bytes, len);
    m.credit_bytes = sp_unpack_u64(&u);
    m.acked_event = sp_unpack_u64(&u);
    DECODE_END(u, m, ret);
}

void sp_msg_event_body_encode(struct sp_pack *p, const struct sp_msg_event *m)
{
    sp_pack_u8(p, m->kind);
    switch (m->kind) {
    case SP_EVENT_STARTED:
        sp_pack_i32(p, m->pid);
        break;
    case SP_EVENT_STDOUT:
    case SP_EVENT_STDERR:
        sp_pack_rest(p, m->data.bytes, m->data.len);
        break;
    case SP_EVENT_DROPPED:
        sp_pack_u8(p, m->dropped_stream);
        sp_pack_u64(p, m->dropped_bytes);
        break;
    case SP_EVENT_EXITED:
        pack_exit(p, &m->exit);
        break;
    case SP_EVENT_ERROR:
        sp_msg_error_encode(p, &m->failed);
        break;
    default:
        p->overflow = true; /* a kind that does not exist cannot be sent */
    }
}

void sp_msg_event_encode(struct sp_pack *p, const struct sp_msg_event *m)
{
    sp_pack_u64(p, m->event_id);
    sp_msg_event_body_encode(p, m);
}

bool sp_msg_event_decode(const uint8_t *bytes, size_t len, struct sp_msg_event *ret)
{
    struct sp_unpack u;
    struct sp_msg_event m = {0};
    sp_unpack_init(&u, bytes, len);
    m.event_id = sp_unpack_u64(&u);
    m.kind = sp_unpack_u8(&u);
    switch (m.kind) {
    case SP_EVENT_STARTED:
        m.pid = sp_unpack_i32(&u);
        break;
    case SP_EVENT_STDOUT:
    case SP_EVENT_STDERR:
        m.data = sp_unpack_rest(&u);
        if (m.data.len == 0)
            return false;
        break;
    case SP_EVENT_DROPPED:
        m.dropped_stream = sp_unpack_u8(&u);
        m.dropped_bytes = sp_unpack_u64(&u);
        if (m.dropped_stream != SP_EVENT_STDOUT && m.dropped_stream != SP_EVENT_STDERR)
            return false;
        break;
    case SP_EVENT_EXITED:
        m.exit = unpack_exit(&u);
        break;
    case SP_EVENT_ERROR:
        m.failed = unpack_error(&u);
        break;
    default:
        return false;
    }
    if (m.event_id == 0)
        return false;
    DECODE_END(u, m, ret);
}

/* --- input ----------------------------------------------------------------------------------- */

void sp_msg_stdin_encode(struct sp_pack *p, const struct sp_msg_stdin *m)
{
    sp_msg_stdin_close_encode(p, m->session_id, m->offset);
    sp_pack_rest(p, m->data.bytes, m->data.len);
}

bool sp_msg_stdin_decode(const uint8_t *bytes, size_t len, struct sp_msg_stdin *ret)
{
    struct sp_unpack u;
    struct sp_msg_stdin m = {0};
    sp_unpack_init(&u, bytes, len);
    m.session_id = unpack_session_id(&u);
    m.offset = sp_unpack_u64(&u);
    m.data = sp_unpack_rest(&u);
    if (m.offset > UINT64_MAX - SP_FRAME_MAX_PAYLOAD)
        return false;
    DECODE_END(u, m, ret);
}

void sp_msg_stdin_close_encode(struct sp_pack *p, struct sp_span session_id, uint64_t offset)
{
    pack_span(p, session_id);
    sp_pack_u64(p, offset);
}

bool sp_msg_stdin_close_decode(const uint8_t *bytes, size_t len, struct sp_msg_stdin *ret)
{
    struct sp_msg_stdin m;
    if (!sp_msg_stdin_decode(bytes, len, &m) || m.data.len > 0)
        return false;
    *ret = m;
    return true;
}

void sp_msg_stdin_ack_encode(struct sp_pack *p, const struct sp_msg_stdin_ack *m)
{
    pack_span(p, m->session_id);
    sp_pack_u64(p, m->accepted);
    sp_pack_u64(p, m->window_end);
    sp_pack_u8(p, m->closed);
}

bool sp_msg_stdin_ack_decode(const uint8_t *bytes, size_t len, struct sp_msg_stdin_ack *ret)
{
    struct sp_unpack u;
    struct sp_msg_stdin_ack m = {0};
    sp_unpack_init(&u, bytes, len);
    m.session_id = unpack_session_id(&u);
    m.accepted = sp_unpack_u64(&u);
    m.window_end = sp_unpack_u64(&u);
    m.closed = unpack_small(&u, 1);
    if (m.window_end < m.accepted)
        return false;
    DECODE_END(u, m, ret);
}
