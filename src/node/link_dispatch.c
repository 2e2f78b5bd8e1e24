/* What an agent's frame does to those who wait. */
#include "node/link_private.h"

#include <string.h>

#include "base/error.h"

static bool violation(GError **error, const char *what)
{
    g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the agent broke the protocol: %s", what);
    return false;
}

static bool on_reply(struct sp_link *link, const struct sp_frame_header *header,
                     const uint8_t *payload, GError **error)
{
    struct link_request *request =
        g_hash_table_lookup(link->requests, GUINT_TO_POINTER(header->tag));
    if (!request)
        return true; /* its waiter has given up */
    if (header->type != request->reply_type && header->type != SP_FRAME_ERROR)
        return violation(error, "an answer of the wrong type");
    g_hash_table_remove(link->requests, GUINT_TO_POINTER(header->tag));
    request->got_type = header->type;
    request->reply = g_memdup2(payload, header->payload_len);
    request->reply_len = header->payload_len;
    request->done = true;
    g_cond_signal(&request->cond);
    return true;
}

static bool on_stdin_ack(struct sp_link *link, const struct sp_frame_header *header,
                         const uint8_t *payload, GError **error)
{
    struct sp_msg_stdin_ack ack;
    if (!sp_msg_stdin_ack_decode(payload, header->payload_len, &ack))
        return violation(error, "a malformed STDIN_ACK");
    sp_link_input_on_ack(link, &ack);
    return header->tag == 0 || on_reply(link, header, payload, error);
}

static bool on_error(struct sp_link *link, const struct sp_frame_header *header,
                     const uint8_t *payload, GError **error)
{
    struct sp_msg_error refused;
    if (!sp_msg_error_decode(payload, header->payload_len, &refused))
        return violation(error, "a malformed ERROR");
    struct sp_link_sub *sub = g_hash_table_lookup(link->subs, GUINT_TO_POINTER(header->tag));
    if (!sub)
        return on_reply(link, header, payload, error);
    if (sub->phase != LINK_SUB_ASKED)
        return violation(error, "ERROR to a subscription that it had accepted");
    if (!sub->answered)
        sp_link_agent_error(payload, header->payload_len, &sub->refused);
    sub->answered = true;
    sp_link_sub_lose(sub, "the sandbox does not know the session any more");
    return true;
}

bool sp_link_dispatch(struct sp_link *link, const struct sp_frame_header *header,
                      const uint8_t *payload, GError **error)
{
    struct sp_link_sub *sub;
    switch (header->type) {
    case SP_FRAME_PING:
        if (header->payload_len > SP_MSG_PING_MAX)
            return violation(error, "a PING that is too long");
        sp_link_put(link, SP_FRAME_PONG, header->tag, payload, header->payload_len);
        sp_link_flush(link);
        return true;
    case SP_FRAME_PONG:
        link->ping_sent_us = 0;
        return on_reply(link, header, payload, error);
    case SP_FRAME_OK:
    case SP_FRAME_STARTED:
    case SP_FRAME_PROCESS_LIST:
        return on_reply(link, header, payload, error);
    case SP_FRAME_ERROR:
        return on_error(link, header, payload, error);
    case SP_FRAME_STDIN_ACK:
        return on_stdin_ack(link, header, payload, error);
    case SP_FRAME_SUBSCRIBED:
        sub = g_hash_table_lookup(link->subs, GUINT_TO_POINTER(header->tag));
        return !sub || sp_link_sub_on_subscribed(sub, payload, header->payload_len, error);
    case SP_FRAME_EVENT:
        sub = g_hash_table_lookup(link->subs, GUINT_TO_POINTER(header->tag));
        return !sub || sp_link_sub_on_event(sub, payload, header->payload_len, error);
    case SP_FRAME_HELLO_OK:
        return violation(error, "a second HELLO_OK");
    default:
        return true; /* of a later version; nothing that we wait for */
    }
}

static int by_tag(const void *a, const void *b)
{
    guint32 left = GPOINTER_TO_UINT(*(void *const *)a), right = GPOINTER_TO_UINT(*(void *const *)b);
    return left < right ? -1 : left > right;
}

void sp_link_resume(struct sp_link *link)
{
    /* In the order of their making, so that a START comes before the SUBSCRIBE to its session. */
    guint n_requests = 0, n_subs = 0;
    g_autofree void **tags = g_hash_table_get_keys_as_array(link->requests, &n_requests);
    g_autofree void **ids = g_hash_table_get_keys_as_array(link->subs, &n_subs);
    g_autofree void **all = g_new(void *, n_requests + n_subs + 1);
    memcpy(all, tags, n_requests * sizeof(void *));
    memcpy(all + n_requests, ids, n_subs * sizeof(void *));
    qsort(all, n_requests + n_subs, sizeof(void *), by_tag);
    for (guint i = 0; i < n_requests + n_subs; i++) {
        struct link_request *request = g_hash_table_lookup(link->requests, all[i]);
        if (request) {
            sp_link_put(link, request->type, request->tag, request->payload, request->payload_len);
            continue;
        }
        struct sp_link_sub *sub = g_hash_table_lookup(link->subs, all[i]);
        if (sub->phase == LINK_SUB_ASKED || sub->phase == LINK_SUB_ACTIVE)
            sp_link_sub_send(sub);
    }
    GHashTableIter iter;
    void *value;
    g_hash_table_iter_init(&iter, link->inputs);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        struct link_input *input = value;
        input->known = false; /* an ACK may have been lost: the writer asks again */
        g_cond_broadcast(&input->cond);
    }
    sp_link_flush(link);
}

void sp_link_end_all(struct sp_link *link, const char *reason)
{
    GHashTableIter iter;
    void *value;
    g_hash_table_iter_init(&iter, link->requests);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        struct link_request *request = value;
        request->done = request->failed = true;
        g_cond_signal(&request->cond);
        g_hash_table_iter_remove(&iter);
    }
    g_hash_table_iter_init(&iter, link->subs);
    while (g_hash_table_iter_next(&iter, NULL, &value))
        sp_link_sub_lose(value, reason);
    g_hash_table_iter_init(&iter, link->inputs);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        struct link_input *input = value;
        g_cond_broadcast(&input->cond);
    }
}
