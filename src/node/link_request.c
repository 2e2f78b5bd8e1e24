/* Requests of the link: each waits for its answer, and is repeated after a cut. */
#include "node/link_private.h"

#include <string.h>

#include "base/error.h"

static const struct {
    const char *code;
    enum sp_error_code error;
} agent_codes[] = {
    {"invalid", SP_ERROR_INVALID_REQUEST},
    {"unsupported", SP_ERROR_UNSUPPORTED},
    {"not_found", SP_ERROR_NOT_FOUND},
    {"not_identified", SP_ERROR_UNAVAILABLE},
    {"entropy_failed", SP_ERROR_UNAVAILABLE},
    {"held", SP_ERROR_FAILED_PRECONDITION},
    {"busy", SP_ERROR_UNAVAILABLE},
    {"process_exited", SP_ERROR_FAILED_PRECONDITION},
    {"stdin_closed", SP_ERROR_FAILED_PRECONDITION},
    {"not_a_terminal", SP_ERROR_FAILED_PRECONDITION},
    {"too_many", SP_ERROR_QUOTA_EXCEEDED},
};

void sp_link_agent_error(const uint8_t *payload, size_t len, GError **error)
{
    struct sp_msg_error refused;
    if (!sp_msg_error_decode(payload, len, &refused)) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the agent sent a malformed error");
        return;
    }
    enum sp_error_code code = SP_ERROR_INTERNAL;
    for (size_t i = 0; i < G_N_ELEMENTS(agent_codes); i++) {
        if (strlen(agent_codes[i].code) == refused.code.len &&
            memcmp(agent_codes[i].code, refused.code.bytes, refused.code.len) == 0)
            code = agent_codes[i].error;
    }
    g_autofree char *name =
        g_utf8_make_valid((const char *)refused.code.bytes, (gssize)refused.code.len);
    g_autofree char *text =
        g_utf8_make_valid((const char *)refused.message.bytes, (gssize)refused.message.len);
    g_set_error(error, SP_ERROR, (int)code, "%s: %s", name, text);
}

void sp_link_set_ended(struct sp_link *link, GError **error)
{
    g_set_error(error, SP_ERROR, link->suspended ? SP_ERROR_CONFLICT : SP_ERROR_UNAVAILABLE, "%s",
                link->stop_reason                ? link->stop_reason
                : link->state == SP_LINK_STOPPED ? "the worker is stopping"
                                                 : "the sandbox has ended");
}

void sp_link_set_paused(GError **error)
{
    g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION, "the sandbox is paused");
}

uint32_t sp_link_new_tag(struct sp_link *link)
{
    do {
        link->next_tag++;
    } while (link->next_tag == 0 ||
             g_hash_table_contains(link->requests, GUINT_TO_POINTER(link->next_tag)) ||
             g_hash_table_contains(link->subs, GUINT_TO_POINTER(link->next_tag)));
    return link->next_tag;
}

bool link_request_init(struct link_request *request, uint8_t type, uint8_t reply_type,
                       const struct sp_pack *packed, GError **error)
{
    memset(request, 0, sizeof(*request));
    if (packed && packed->overflow) {
        g_set_error(error, SP_ERROR, SP_ERROR_PAYLOAD_TOO_LARGE,
                    "command, environment and options do not fit into 64 KiB");
        return false;
    }
    request->type = type;
    request->reply_type = reply_type;
    if (packed) {
        request->payload = g_memdup2(packed->bytes, packed->len);
        request->payload_len = packed->len;
    }
    g_cond_init(&request->cond);
    return true;
}

void link_request_clear(struct link_request *request)
{
    g_clear_pointer(&request->payload, g_free);
    g_clear_pointer(&request->reply, g_free);
    g_cond_clear(&request->cond);
}

bool sp_link_begin(struct sp_link *link, struct link_request *request, GError **error)
{
    if (link->state == SP_LINK_GONE || link->state == SP_LINK_STOPPED) {
        sp_link_set_ended(link, error);
        return false;
    }
    if (link->paused) {
        sp_link_set_paused(error);
        return false;
    }
    request->tag = sp_link_new_tag(link);
    g_hash_table_insert(link->requests, GUINT_TO_POINTER(request->tag), request);
    sp_link_put(link, request->type, request->tag, request->payload, request->payload_len);
    return true;
}

bool sp_link_finish(struct sp_link *link, struct link_request *request, int64_t deadline_us,
                    GError **error)
{
    while (!request->done) {
        if (g_cond_wait_until(&request->cond, &link->lock, deadline_us) || request->done)
            continue;
        g_hash_table_remove(link->requests, GUINT_TO_POINTER(request->tag));
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the sandbox did not answer in time%s%s",
                    link->error[0] ? ": " : "", link->error);
        return false;
    }
    if (request->failed) {
        sp_link_set_ended(link, error);
        return false;
    }
    if (request->got_type == request->reply_type)
        return true;
    sp_link_agent_error(request->reply, request->reply_len, error);
    return false;
}

/* One request from packing to answer; the caller clears the request when it is true. */
static bool call(struct sp_link *link, struct link_request *request, int64_t deadline_us,
                 GError **error)
{
    g_mutex_lock(&link->lock);
    while (link->out_len - link->out_at > LINK_OUT_ROOM && link->state == SP_LINK_READY) {
        if (!g_cond_wait_until(&link->changed, &link->lock, deadline_us))
            break;
    }
    bool fine = sp_link_begin(link, request, error);
    if (fine) {
        sp_link_flush(link);
        fine = sp_link_finish(link, request, deadline_us, error);
    }
    g_mutex_unlock(&link->lock);
    if (!fine)
        link_request_clear(request);
    return fine;
}

static bool malformed(GError **error)
{
    g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the agent sent a malformed answer");
    return false;
}

bool sp_link_ping(struct sp_link *link, int64_t deadline_us, GError **error)
{
    struct link_request request;
    if (!link_request_init(&request, SP_FRAME_PING, SP_FRAME_PONG, NULL, error) ||
        !call(link, &request, deadline_us, error))
        return false;
    link_request_clear(&request);
    return true;
}

bool sp_link_identity(struct sp_link *link, const struct sp_msg_identity *identity,
                      int64_t deadline_us, GError **error)
{
    g_autofree uint8_t *bytes = g_malloc(SP_FRAME_MAX_PAYLOAD);
    struct sp_pack p;
    sp_pack_init(&p, bytes, SP_FRAME_MAX_PAYLOAD);
    sp_msg_identity_encode(&p, identity);
    struct link_request request;
    if (!link_request_init(&request, SP_FRAME_IDENTITY, SP_FRAME_OK, &p, error) ||
        !call(link, &request, deadline_us, error))
        return false;
    link_request_clear(&request);
    return true;
}

/* A request whose answer is STARTED. */
static bool call_session(struct sp_link *link, uint8_t type, const struct sp_pack *packed,
                         int64_t deadline_us, struct sp_msg_session *ret, GError **error)
{
    struct link_request request;
    if (!link_request_init(&request, type, SP_FRAME_STARTED, packed, error) ||
        !call(link, &request, deadline_us, error))
        return false;
    bool fine = sp_msg_session_decode(request.reply, request.reply_len, ret) || malformed(error);
    link_request_clear(&request);
    return fine;
}

bool sp_link_session_start(struct sp_link *link, const struct sp_msg_start *start,
                           int64_t deadline_us, struct sp_msg_session *ret, GError **error)
{
    g_autofree uint8_t *bytes = g_malloc(SP_FRAME_MAX_PAYLOAD);
    struct sp_pack p;
    sp_pack_init(&p, bytes, SP_FRAME_MAX_PAYLOAD);
    sp_msg_start_encode(&p, start);
    return call_session(link, SP_FRAME_START, &p, deadline_us, ret, error);
}

bool sp_link_session_stat(struct sp_link *link, const char *session_id, int64_t deadline_us,
                          struct sp_msg_session *ret, GError **error)
{
    uint8_t bytes[SP_MSG_SESSION_ID_MAX + 4];
    struct sp_pack p;
    sp_pack_init(&p, bytes, sizeof(bytes));
    sp_msg_ref_encode(&p, sp_span_of(session_id));
    return call_session(link, SP_FRAME_SESSION_STAT, &p, deadline_us, ret, error);
}

/* A small request whose answer is OK. */
static bool call_ok(struct sp_link *link, uint8_t type, const struct sp_pack *packed,
                    int64_t deadline_us, GError **error)
{
    struct link_request request;
    if (!link_request_init(&request, type, SP_FRAME_OK, packed, error) ||
        !call(link, &request, deadline_us, error))
        return false;
    link_request_clear(&request);
    return true;
}

bool sp_link_signal(struct sp_link *link, const struct sp_msg_signal *signal, int64_t deadline_us,
                    GError **error)
{
    uint8_t bytes[SP_MSG_SESSION_ID_MAX + 16];
    struct sp_pack p;
    sp_pack_init(&p, bytes, sizeof(bytes));
    sp_msg_signal_encode(&p, signal);
    return call_ok(link, SP_FRAME_SIGNAL, &p, deadline_us, error);
}

bool sp_link_hold(struct sp_link *link, uint32_t flags, int64_t deadline_us, GError **error)
{
    uint8_t bytes[16];
    struct sp_pack p;
    struct sp_msg_hold hold = {.flags = flags};
    sp_pack_init(&p, bytes, sizeof(bytes));
    sp_msg_hold_encode(&p, &hold);
    return call_ok(link, SP_FRAME_HOLD, &p, deadline_us, error);
}

bool sp_link_release(struct sp_link *link, uint64_t realtime_ns, int64_t deadline_us,
                     GError **error)
{
    uint8_t bytes[16];
    struct sp_pack p;
    struct sp_msg_release release = {.realtime_ns = realtime_ns};
    sp_pack_init(&p, bytes, sizeof(bytes));
    sp_msg_release_encode(&p, &release);
    return call_ok(link, SP_FRAME_RELEASE, &p, deadline_us, error);
}

void sp_link_forget(struct sp_link *link, const char *session_id)
{
    uint8_t bytes[SP_MSG_SESSION_ID_MAX + 4];
    struct sp_pack p;
    sp_pack_init(&p, bytes, sizeof(bytes));
    sp_msg_ref_encode(&p, sp_span_of(session_id));
    g_mutex_lock(&link->lock);
    sp_link_put(link, SP_FRAME_FORGET, sp_link_new_tag(link), bytes, p.len);
    sp_link_flush(link);
    g_mutex_unlock(&link->lock);
}

bool sp_link_resize(struct sp_link *link, const char *session_id, uint16_t rows, uint16_t cols,
                    int64_t deadline_us, GError **error)
{
    uint8_t bytes[SP_MSG_SESSION_ID_MAX + 16];
    struct sp_pack p;
    struct sp_msg_resize resize = {sp_span_of(session_id), rows, cols};
    sp_pack_init(&p, bytes, sizeof(bytes));
    sp_msg_resize_encode(&p, &resize);
    return call_ok(link, SP_FRAME_RESIZE, &p, deadline_us, error);
}

bool sp_link_processes(struct sp_link *link, int64_t deadline_us,
                       void (*fn)(void *user, const struct sp_msg_process *process), void *user,
                       GError **error)
{
    struct link_request request;
    if (!link_request_init(&request, SP_FRAME_PROCESSES, SP_FRAME_PROCESS_LIST, NULL, error) ||
        !call(link, &request, deadline_us, error))
        return false;
    struct sp_msg_process_list list;
    bool fine =
        sp_msg_process_list_decode(request.reply, request.reply_len, &list) || malformed(error);
    struct sp_msg_process process;
    size_t at = 0;
    while (fine && sp_msg_process_next(&list, &at, &process))
        fn(user, &process);
    link_request_clear(&request);
    return fine;
}
