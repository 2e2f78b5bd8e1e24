#include "subscription.h"

#include "link.h"
#include "session.h"

#define EVENT_ID_BYTES 8u

static struct subscription *find(struct agent *a, uint32_t tag)
{
    for (uint32_t i = 0; i < a->subscription_high; i++) {
        if (a->subscriptions[i].session && a->subscriptions[i].tag == tag)
            return &a->subscriptions[i];
    }
    return NULL;
}

/* The slowest subscription decides what may be evicted; with none, the last word stands. */
static void update_acked(struct agent *a, struct session *s)
{
    uint64_t acked = UINT64_MAX;
    for (uint32_t i = 0; i < a->subscription_high; i++) {
        const struct subscription *sub = &a->subscriptions[i];
        if (sub->session == s && sub->acked < acked)
            acked = sub->acked;
    }
    if (acked == UINT64_MAX || acked == s->ring.acked)
        return;
    ring_set_acked(&s->ring, acked);
    session_room_changed(a, s);
}

static void drop(struct agent *a, struct subscription *sub)
{
    struct session *s = sub->session;
    sub->session = NULL;
    update_acked(a, s);
}

void subscription_drop_all(struct agent *a)
{
    for (uint32_t i = 0; i < a->subscription_high; i++)
        a->subscriptions[i].session = NULL;
    a->subscription_high = a->subscription_turn = 0;
}

void subscription_drop_session(struct agent *a, const struct session *s)
{
    for (uint32_t i = 0; i < a->subscription_high; i++) {
        if (a->subscriptions[i].session == s)
            a->subscriptions[i].session = NULL;
    }
}

static struct subscription *free_slot(struct agent *a)
{
    for (uint32_t i = 0; i < AGENT_SUBSCRIPTIONS_MAX; i++) {
        if (i >= a->subscription_high)
            a->subscription_high = i + 1;
        if (!a->subscriptions[i].session)
            return &a->subscriptions[i];
    }
    return NULL;
}

void subscription_add(struct agent *a, uint32_t tag, const struct sp_msg_subscribe *m)
{
    struct session *s = session_find(a, m->session_id);
    if (!s) {
        link_reply_error(&a->link, tag, "not_found", "no such session");
        return;
    }
    if (m->after_event >= s->ring.next_id) {
        link_reply_error(&a->link, tag, "invalid", "after_event is not an event that exists");
        return;
    }
    struct subscription *old = find(a, tag);
    if (old)
        old->session = NULL;
    struct subscription *sub = free_slot(a);
    if (!sub) {
        link_reply_error(&a->link, tag, "too_many", "subscriptions");
        return;
    }
    struct sp_msg_subscribed reply = {.oldest_event = s->ring.oldest_id,
                                      .next_event = s->ring.next_id,
                                      .first_event = m->after_event + 1};
    if (reply.first_event < s->ring.oldest_id) { /* evicted: go on from now */
        reply.gap = 1;
        reply.first_event = s->ended ? s->ring.next_id - 1 : s->ring.next_id;
    }
    *sub = (struct subscription){
        .session = s, .tag = tag, .credit_bytes = m->credit_bytes, .acked = reply.first_event - 1};
    if (!ring_seek(&s->ring, reply.first_event, &sub->cursor)) {
        sub->session = NULL;
        link_reply_error(&a->link, tag, "internal", "the event cannot be found");
        return;
    }
    update_acked(a, s);
    struct sp_pack p = link_begin(&a->link);
    sp_msg_subscribed_encode(&p, &reply);
    link_commit(&a->link, SP_FRAME_SUBSCRIBED, tag, &p);
}

void subscription_remove(struct agent *a, uint32_t tag)
{
    struct subscription *sub = find(a, tag);
    if (sub)
        drop(a, sub);
}

void subscription_credit(struct agent *a, uint32_t tag, const struct sp_msg_credit *m)
{
    struct subscription *sub = find(a, tag);
    if (!sub)
        return;
    if (m->credit_bytes > sub->credit_bytes)
        sub->credit_bytes = m->credit_bytes;
    uint64_t acked = m->acked_event;
    if (acked >= sub->cursor.id) /* nothing that was not sent can be acknowledged */
        acked = sub->cursor.id - 1;
    if (acked > sub->acked) {
        sub->acked = acked;
        update_acked(a, sub->session);
    }
}

/* Queues the next event of one subscription. false: nothing to send, or no credit or room. */
static bool send_next(struct agent *a, struct subscription *sub)
{
    struct ring *ring = &sub->session->ring;
    size_t body = ring_body_len(ring, &sub->cursor);
    size_t payload = EVENT_ID_BYTES + body;
    if (body == 0 || sub->sent_bytes + payload > sub->credit_bytes ||
        !link_has_room(&a->link, payload))
        return false;
    struct sp_pack p = link_begin(&a->link);
    sp_pack_u64(&p, sub->cursor.id);
    ring_take(ring, &sub->cursor, p.bytes + p.len);
    p.len += body;
    link_commit(&a->link, SP_FRAME_EVENT, sub->tag, &p);
    sub->sent_bytes += payload;
    return true;
}

void subscription_pump(struct agent *a)
{
    uint32_t idle = 0;
    while (a->subscription_high > 0 && idle < a->subscription_high) {
        a->subscription_turn %= a->subscription_high;
        struct subscription *sub = &a->subscriptions[a->subscription_turn++];
        if (sub->session && send_next(a, sub))
            idle = 0;
        else
            idle++;
    }
}
