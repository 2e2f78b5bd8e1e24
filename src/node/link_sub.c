/* Subscriptions: events in order, with credit for what is on the way and acknowledgements. */
#include "node/link_private.h"

#include <string.h>

#include "base/error.h"
#include "base/time.h"

/* An ACK is sent when this much has been read, so that few events do not cost a packet each. The
 * agent's ring is larger than this and the window together need. */
#define ACK_STEP (128u << 10)

static bool violation(GError **error, const char *what)
{
    g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the agent broke the protocol: %s", what);
    return false;
}

void sp_link_sub_send(struct sp_link_sub *sub)
{
    uint8_t bytes[SP_MSG_SESSION_ID_MAX + 32];
    struct sp_pack p;
    /* The window less what waits here; never less than one frame, or nothing could be sent. */
    sub->credit_total = LINK_WINDOW - MIN(sub->queued_bytes, LINK_WINDOW - SP_FRAME_MAX_PAYLOAD);
    sub->received = 0;
    sub->sent_ack_event = 0;
    sub->phase = LINK_SUB_ASKED;
    struct sp_msg_subscribe subscribe = {
        .session_id = sp_span_of(sub->session_id),
        .after_event = sub->last_event,
        .credit_bytes = sub->credit_total,
    };
    sp_pack_init(&p, bytes, sizeof(bytes));
    sp_msg_subscribe_encode(&p, &subscribe);
    sp_link_put(sub->link, SP_FRAME_SUBSCRIBE, sub->id, bytes, p.len);
}

static void send_credit(struct sp_link_sub *sub)
{
    uint8_t bytes[16];
    struct sp_pack p;
    struct sp_msg_credit credit = {sub->credit_total, sub->acked_event};
    sp_pack_init(&p, bytes, sizeof(bytes));
    sp_msg_credit_encode(&p, &credit);
    sp_link_put(sub->link, SP_FRAME_CREDIT, sub->id, bytes, p.len);
    sub->sent_ack_event = sub->acked_event;
    sub->sent_ack_weight = sub->acked_weight;
}

void sp_link_sub_lose(struct sp_link_sub *sub, const char *reason)
{
    if (sub->phase == LINK_SUB_ENDED || sub->phase == LINK_SUB_LOST)
        return;
    sub->phase = LINK_SUB_LOST;
    sub->suspended = sub->link->suspended && sub->link->state == SP_LINK_STOPPED;
    sub->reason = g_strdup(reason);
    g_cond_broadcast(&sub->cond);
}

static void push(struct sp_link_sub *sub, struct sp_link_event *event)
{
    g_queue_push_tail(&sub->events, event);
    if (sub->waiting) /* a signal is a system call even when nobody waits */
        g_cond_signal(&sub->cond);
}

bool sp_link_sub_on_subscribed(struct sp_link_sub *sub, const uint8_t *payload, size_t len,
                               GError **error)
{
    struct sp_msg_subscribed m;
    if (!sp_msg_subscribed_decode(payload, len, &m) || m.gap > 1)
        return violation(error, "a malformed SUBSCRIBED");
    if (sub->phase != LINK_SUB_ASKED)
        return violation(error, "SUBSCRIBED without a SUBSCRIBE");
    if (m.gap ? m.first_event <= sub->last_event + 1 : m.first_event != sub->last_event + 1)
        return violation(error, "SUBSCRIBED with a wrong first event");
    sub->phase = LINK_SUB_ACTIVE;
    sub->answered = true;
    if (m.gap) {
        struct sp_link_event *gap = g_malloc0(sizeof(*gap));
        gap->kind = LINK_EVENT_GAP;
        gap->id = m.first_event;
        gap->dropped_bytes = m.oldest_event;
        sub->last_event = m.first_event - 1;
        push(sub, gap);
    }
    g_cond_broadcast(&sub->cond);
    return true;
}

static struct sp_link_event *copy_event(const struct sp_msg_event *m)
{
    size_t data_len =
        m->kind == SP_EVENT_ERROR ? m->failed.code.len + m->failed.message.len : m->data.len;
    struct sp_link_event *event = g_malloc(sizeof(*event) + data_len);
    *event = (struct sp_link_event){
        .id = m->event_id,
        .kind = m->kind,
        .pid = m->pid,
        .dropped_stream = m->dropped_stream,
        .dropped_bytes = m->dropped_bytes,
        .exit = m->exit,
        .data_len = (uint32_t)data_len,
    };
    if (m->kind == SP_EVENT_ERROR) {
        event->code_len = (uint32_t)m->failed.code.len;
        if (m->failed.code.len)
            memcpy(event->data, m->failed.code.bytes, m->failed.code.len);
        if (m->failed.message.len)
            memcpy(event->data + event->code_len, m->failed.message.bytes, m->failed.message.len);
    } else if (data_len > 0) {
        memcpy(event->data, m->data.bytes, data_len);
    }
    return event;
}

bool sp_link_sub_on_event(struct sp_link_sub *sub, const uint8_t *payload, size_t len,
                          GError **error)
{
    struct sp_msg_event m;
    if (sub->phase == LINK_SUB_LOST)
        return true;
    if (sub->phase != LINK_SUB_ACTIVE)
        return violation(error, "an EVENT outside of its subscription");
    if (!sp_msg_event_decode(payload, len, &m))
        return violation(error, "a malformed EVENT");
    if (m.event_id != sub->last_event + 1)
        return violation(error, "an EVENT out of order");
    sub->received += len;
    if (sub->received > sub->credit_total)
        return violation(error, "more EVENTs than it had credit for");
    struct sp_link_event *event = copy_event(&m);
    sub->last_event = m.event_id;
    sub->queued_bytes += len;
    sub->weight += event->data_len + LINK_EVENT_WEIGHT;
    event->weight_end = sub->weight;
    if (m.kind == SP_EVENT_EXITED || m.kind == SP_EVENT_ERROR)
        sub->phase = LINK_SUB_ENDED;
    push(sub, event);
    return true;
}

/* The payload size an event came with: as it counted against the credit. */
static size_t payload_bytes(const struct sp_link_event *event)
{
    switch (event->kind) {
    case SP_EVENT_STDOUT:
    case SP_EVENT_STDERR:
        return 9 + event->data_len;
    case SP_EVENT_STARTED:
        return 9 + 4;
    case SP_EVENT_DROPPED:
        return 9 + 1 + 8;
    case SP_EVENT_EXITED:
        return 9 + 4 + 4 + 1 + 3 * 8;
    case SP_EVENT_ERROR:
        return 9 + 8 + event->data_len;
    default:
        return 0;
    }
}

static enum sp_pull take(struct sp_link_sub *sub, struct sp_link_event **ret)
{
    struct sp_link_event *event = g_queue_pop_head(&sub->events);
    if (event->kind == LINK_EVENT_GAP) {
        sub->gap_oldest = event->dropped_bytes;
        sub->gap_next = event->id;
        g_free(event);
        return SP_PULL_GAP;
    }
    sub->queued_bytes -= MIN(sub->queued_bytes, payload_bytes(event));
    uint64_t want = sub->received + LINK_WINDOW - MIN(sub->queued_bytes, LINK_WINDOW);
    if (sub->phase == LINK_SUB_ACTIVE && want >= sub->credit_total + LINK_WINDOW / 4) {
        sub->credit_total = want;
        send_credit(sub);
        sp_link_flush(sub->link);
    }
    *ret = event;
    return SP_PULL_EVENT;
}

enum sp_pull sp_link_sub_pull(struct sp_link_sub *sub, int64_t deadline_us,
                              struct sp_link_event **ret)
{
    struct sp_link *link = sub->link;
    enum sp_pull result = SP_PULL_TIMEOUT;
    g_mutex_lock(&link->lock);
    for (;;) {
        if (!g_queue_is_empty(&sub->events)) {
            result = take(sub, ret);
            break;
        }
        if (sub->phase == LINK_SUB_ENDED) {
            result = SP_PULL_END;
            break;
        }
        if (sub->phase == LINK_SUB_LOST) {
            result = sub->suspended ? SP_PULL_SUSPENDED
                     : sub->reason  ? SP_PULL_LOST
                                    : SP_PULL_STOPPED;
            break;
        }
        int64_t until = deadline_us;
        int64_t hopeless = link->down_since_us + LINK_UNREACHABLE_MS * (int64_t)1000;
        if (link->state == SP_LINK_CONNECTING && !link->paused)
            until = MIN(until, hopeless);
        sub->waiting = true;
        bool woken = g_cond_wait_until(&sub->cond, &link->lock, until);
        sub->waiting = false;
        if (woken || !g_queue_is_empty(&sub->events))
            continue;
        int64_t now = sp_time_monotonic_us();
        if (link->state == SP_LINK_CONNECTING && !link->paused && now >= hopeless) {
            result = SP_PULL_UNREACHABLE;
            break;
        }
        if (now >= deadline_us)
            break;
    }
    g_mutex_unlock(&link->lock);
    return result;
}

bool sp_link_sub_ready(struct sp_link_sub *sub)
{
    g_mutex_lock(&sub->link->lock);
    bool ready = !g_queue_is_empty(&sub->events) || sub->phase == LINK_SUB_ENDED ||
                 sub->phase == LINK_SUB_LOST;
    g_mutex_unlock(&sub->link->lock);
    return ready;
}

void sp_link_sub_gap(struct sp_link_sub *sub, uint64_t *ret_oldest, uint64_t *ret_next)
{
    *ret_oldest = sub->gap_oldest;
    *ret_next = sub->gap_next;
}

const char *sp_link_sub_reason(struct sp_link_sub *sub)
{
    return sub->reason;
}

void sp_link_sub_ack(struct sp_link_sub *sub, uint64_t event_id, uint64_t weight_end)
{
    struct sp_link *link = sub->link;
    g_mutex_lock(&link->lock);
    if (event_id > sub->acked_event) {
        sub->acked_event = event_id;
        sub->acked_weight = weight_end;
        if (sub->phase == LINK_SUB_ACTIVE && sub->acked_weight - sub->sent_ack_weight >= ACK_STEP) {
            send_credit(sub);
            sp_link_flush(link);
        }
    }
    g_mutex_unlock(&link->lock);
}

/* Waits for the answers to START (if any) and SUBSCRIBE; the lock is held. */
static bool await_subscribed(struct sp_link_sub *sub, struct link_request *start,
                             int64_t deadline_us, struct sp_msg_session *ret, GError **error)
{
    struct sp_link *link = sub->link;
    if (start) {
        struct sp_msg_session session;
        if (!sp_link_finish(link, start, deadline_us, error))
            return false;
        if (!sp_msg_session_decode(start->reply, start->reply_len, &session)) {
            g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the agent sent a malformed answer");
            return false;
        }
        if (ret)
            *ret = session;
    }
    while (!sub->answered && sub->phase != LINK_SUB_LOST) {
        if (g_cond_wait_until(&sub->cond, &link->lock, deadline_us))
            continue;
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the sandbox did not answer in time%s%s",
                    link->error[0] ? ": " : "", link->error);
        return false;
    }
    if (sub->refused) {
        g_propagate_error(error, g_steal_pointer(&sub->refused));
        return false;
    }
    if (!sub->answered) {
        sp_link_set_ended(link, error);
        return false;
    }
    return true;
}

static bool pack_start(struct link_request *request, const struct sp_msg_start *start,
                       GError **error)
{
    g_autofree uint8_t *bytes = g_malloc(SP_FRAME_MAX_PAYLOAD);
    struct sp_pack p;
    sp_pack_init(&p, bytes, SP_FRAME_MAX_PAYLOAD);
    sp_msg_start_encode(&p, start);
    return link_request_init(request, SP_FRAME_START, SP_FRAME_STARTED, &p, error);
}

struct sp_link_sub *sp_link_subscribe(struct sp_link *link, const char *session_id,
                                      const struct sp_msg_start *start, uint64_t after_event,
                                      int64_t deadline_us, struct sp_msg_session *ret_session,
                                      GError **error)
{
    struct link_request request;
    if (start && !pack_start(&request, start, error))
        return NULL;
    struct sp_link_sub *sub = g_new0(struct sp_link_sub, 1);
    sub->link = sp_link_ref(link);
    g_strlcpy(sub->session_id, session_id, sizeof(sub->session_id));
    sub->last_event = after_event;
    sub->acked_event = after_event;
    g_cond_init(&sub->cond);
    g_queue_init(&sub->events);

    g_mutex_lock(&link->lock);
    bool fine = true;
    if (start)
        fine = sp_link_begin(link, &request, error);
    else if (link->state == SP_LINK_GONE || link->state == SP_LINK_STOPPED) {
        sp_link_set_ended(link, error);
        fine = false;
    } else if (link->paused) {
        sp_link_set_paused(error);
        fine = false;
    }
    if (fine) {
        sub->id = sp_link_new_tag(link);
        g_hash_table_insert(link->subs, GUINT_TO_POINTER(sub->id), sub);
        sp_link_sub_send(sub);
        sp_link_flush(link);
        fine = await_subscribed(sub, start ? &request : NULL, deadline_us, ret_session, error);
    }
    g_mutex_unlock(&link->lock);
    if (start)
        link_request_clear(&request);
    if (!fine)
        g_clear_pointer(&sub, sp_link_sub_free);
    return sub;
}

void sp_link_sub_free(struct sp_link_sub *sub)
{
    if (!sub)
        return;
    struct sp_link *link = sub->link;
    g_mutex_lock(&link->lock);
    if (sub->id && g_hash_table_remove(link->subs, GUINT_TO_POINTER(sub->id))) {
        if (sub->acked_event > sub->sent_ack_event && sub->phase != LINK_SUB_LOST)
            send_credit(sub);
        sp_link_put(link, SP_FRAME_UNSUBSCRIBE, sub->id, NULL, 0);
        sp_link_flush(link);
    }
    g_mutex_unlock(&link->lock);
    g_queue_clear_full(&sub->events, g_free);
    g_clear_error(&sub->refused);
    g_free(sub->reason);
    g_cond_clear(&sub->cond);
    sp_link_unref(link);
    g_free(sub);
}
