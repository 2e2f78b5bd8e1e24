/* Input of a session: offsets, the agent's window, one writer at a time. */
#include "node/link_private.h"

#include <string.h>

#include "base/error.h"
#include "base/time.h"

/* What fits into one STDIN frame beside the session id, its length and the offset. */
#define CHUNK_BYTES (SP_FRAME_MAX_PAYLOAD - SP_MSG_SESSION_ID_MAX - 16)
/* A shut window is asked about this often: the unasked ACK could have been lost in a cut. */
#define WINDOW_POLL_US 1000000
/* The agent answers at once; a guest that is starved of CPU less so. */
#define ANSWER_US 20000000

struct sp_link_input {
    struct sp_link *link; /* a reference */
    struct link_input *shared;
};

/* A write and how far it came. */
struct writing {
    struct sp_link *link;
    struct link_input *shared;
    int64_t deadline_us;
    bool (*cancelled)(void *user);
    void *user;
};

void sp_link_input_on_ack(struct sp_link *link, const struct sp_msg_stdin_ack *ack)
{
    char id[SP_MSG_SESSION_ID_MAX + 1];
    if (ack->session_id.len >= sizeof(id))
        return;
    memcpy(id, ack->session_id.bytes, ack->session_id.len);
    id[ack->session_id.len] = '\0';
    struct link_input *input = g_hash_table_lookup(link->inputs, id);
    if (!input)
        return;
    input->known = true;
    input->accepted = ack->accepted;
    input->window_end = MAX(ack->window_end, ack->accepted);
    input->closed = ack->closed;
    g_cond_broadcast(&input->cond);
}

struct sp_link_input *sp_link_input_open(struct sp_link *link, const char *session_id)
{
    struct sp_link_input *input = g_new0(struct sp_link_input, 1);
    input->link = sp_link_ref(link);
    g_mutex_lock(&link->lock);
    input->shared = g_hash_table_lookup(link->inputs, session_id);
    if (!input->shared) {
        input->shared = g_new0(struct link_input, 1);
        g_strlcpy(input->shared->session_id, session_id, sizeof(input->shared->session_id));
        g_cond_init(&input->shared->cond);
        g_hash_table_insert(link->inputs, input->shared->session_id, input->shared);
    }
    input->shared->handles++;
    g_mutex_unlock(&link->lock);
    return input;
}

void sp_link_input_free(struct sp_link_input *input)
{
    if (!input)
        return;
    g_mutex_lock(&input->link->lock);
    bool last = --input->shared->handles == 0;
    if (last)
        g_hash_table_remove(input->link->inputs, input->shared->session_id);
    g_mutex_unlock(&input->link->lock);
    if (last) {
        g_cond_clear(&input->shared->cond);
        g_free(input->shared);
    }
    sp_link_unref(input->link);
    g_free(input);
}

void sp_link_input_state(struct sp_link_input *input, struct sp_link_input_state *ret)
{
    g_mutex_lock(&input->link->lock);
    *ret = (struct sp_link_input_state){input->shared->accepted, input->shared->closed};
    g_mutex_unlock(&input->link->lock);
}

/* All below: with the link's lock held. */

static bool ended(struct sp_link *link)
{
    return link->state == SP_LINK_GONE || link->state == SP_LINK_STOPPED;
}

/* Waits about a second, or for a signal. false: it is time to give up. */
static bool wait_a_while(struct writing *w, const char *what, GError **error)
{
    int64_t until = MIN(w->deadline_us, sp_time_monotonic_us() + WINDOW_POLL_US);
    g_cond_wait_until(&w->shared->cond, &w->link->lock, until);
    if (ended(w->link)) {
        sp_link_set_ended(w->link, error);
        return false;
    }
    bool cancelled = false;
    if (w->cancelled) {
        g_mutex_unlock(&w->link->lock);
        cancelled = w->cancelled(w->user);
        g_mutex_lock(&w->link->lock);
    }
    if (!cancelled && sp_time_monotonic_us() < w->deadline_us)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "%s", what);
    return false;
}

static bool take_turn(struct writing *w, GError **error)
{
    while (w->shared->busy) {
        if (!wait_a_while(w, "another writer holds the input of the session", error))
            return false;
    }
    w->shared->busy = true;
    return true;
}

static void end_turn(struct writing *w)
{
    w->shared->busy = false;
    g_cond_broadcast(&w->shared->cond);
}

/* A writer waits for a paused sandbox as for a command that does not read. */
static bool await_resume(struct writing *w, GError **error)
{
    while (w->link->paused && !ended(w->link)) {
        if (!wait_a_while(w, "the sandbox is paused", error))
            return false;
    }
    return true;
}

/* Sends one request and waits for its ACK, which sp_link_input_on_ack() has taken in by then. */
static bool exchange(struct writing *w, uint8_t type, const struct sp_pack *packed, GError **error)
{
    struct link_request request;
    if (!link_request_init(&request, type, SP_FRAME_STDIN_ACK, packed, error))
        return false;
    bool fine = await_resume(w, error);
    int64_t deadline = MIN(w->deadline_us, sp_time_monotonic_us() + ANSWER_US);
    fine = fine && sp_link_begin(w->link, &request, error);
    if (fine) {
        sp_link_flush(w->link);
        fine = sp_link_finish(w->link, &request, deadline, error);
    }
    link_request_clear(&request);
    return fine;
}

static bool query(struct writing *w, GError **error)
{
    uint8_t bytes[SP_MSG_SESSION_ID_MAX + 4];
    struct sp_pack p;
    sp_pack_init(&p, bytes, sizeof(bytes));
    sp_msg_ref_encode(&p, sp_span_of(w->shared->session_id));
    return exchange(w, SP_FRAME_STDIN_QUERY, &p, error);
}

/* Waits until the window is open. */
static bool await_window(struct writing *w, GError **error)
{
    struct link_input *input = w->shared;
    if (!input->known && !query(w, error))
        return false;
    while (!input->closed && input->window_end <= input->accepted) {
        if (!wait_a_while(w, "the command does not read its input", error))
            return false;
        if (!input->closed && input->window_end <= input->accepted && !query(w, error))
            return false;
    }
    if (!input->closed)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                "stdin_closed: the input of the session is closed");
    return false;
}

/* Sends one piece from the accepted offset on. */
static bool send_piece(struct writing *w, const uint8_t *bytes, size_t len, uint8_t *frame,
                       GError **error)
{
    struct link_input *input = w->shared;
    uint64_t window = input->window_end - input->accepted;
    struct sp_msg_stdin m = {
        .session_id = sp_span_of(input->session_id),
        .offset = input->accepted,
        .data = {bytes, (size_t)MIN(MIN((uint64_t)len, window), (uint64_t)CHUNK_BYTES)},
    };
    struct sp_pack p;
    sp_pack_init(&p, frame, SP_FRAME_MAX_PAYLOAD);
    sp_msg_stdin_encode(&p, &m);
    return exchange(w, SP_FRAME_STDIN, &p, error);
}

bool sp_link_input_write(struct sp_link_input *input, const void *bytes, size_t len,
                         int64_t deadline_us, bool (*cancelled)(void *user), void *user,
                         size_t *ret_taken, GError **error)
{
    struct writing w = {input->link, input->shared, deadline_us, cancelled, user};
    g_autofree uint8_t *frame = g_malloc(SP_FRAME_MAX_PAYLOAD);
    size_t taken = 0;
    g_mutex_lock(&w.link->lock);
    bool fine = take_turn(&w, error);
    if (fine) {
        fine = await_window(&w, error);
        /* Only this writer's bytes move it, so it tells how much of them was taken, also when the
         * answer to a request was lost and came with another. */
        uint64_t base = w.shared->accepted;
        while (fine && taken < len) {
            GError *cause = NULL;
            fine = await_window(&w, &cause) &&
                   send_piece(&w, (const uint8_t *)bytes + taken, len - taken, frame, &cause);
            if (w.shared->accepted >= base)
                taken = (size_t)MIN(w.shared->accepted - base, (uint64_t)len);
            if (!fine && w.link->paused && sp_time_monotonic_us() < deadline_us) {
                g_clear_error(&cause); /* it was stopped in the middle: the agent is asked again */
                w.shared->known = false;
                fine = await_resume(&w, &cause);
            }
            if (cause)
                g_propagate_error(error, cause);
        }
        end_turn(&w);
    }
    g_mutex_unlock(&w.link->lock);
    *ret_taken = taken;
    return fine;
}

bool sp_link_input_close(struct sp_link_input *input, int64_t deadline_us, GError **error)
{
    struct writing w = {input->link, input->shared, deadline_us, NULL, NULL};
    g_mutex_lock(&w.link->lock);
    bool fine = take_turn(&w, error);
    if (fine) {
        fine = w.shared->known || query(&w, error);
        if (fine && !w.shared->closed) {
            uint8_t bytes[SP_MSG_SESSION_ID_MAX + 16];
            struct sp_pack p;
            sp_pack_init(&p, bytes, sizeof(bytes));
            sp_msg_stdin_close_encode(&p, sp_span_of(w.shared->session_id), w.shared->accepted);
            fine = exchange(&w, SP_FRAME_STDIN_CLOSE, &p, error);
        }
        end_turn(&w);
    }
    g_mutex_unlock(&w.link->lock);
    return fine;
}
