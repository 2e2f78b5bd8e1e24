/* What the files of the link share; see link.h. */
#pragma once

#include "node/link.h"

#define LINK_OUT_MAX (4u << 20)  /* bytes waiting to go out: beyond, the agent does not read */
#define LINK_OUT_ROOM (1u << 20) /* new requests wait while more than this is waiting */
#define LINK_IN_BYTES (256u << 10)
#define LINK_WINDOW (512u << 10) /* credit of a subscription, bytes of EVENT payload */
#define LINK_EVENT_WEIGHT 64u    /* what an event costs beside its data */
#define LINK_HELLO_FIRST_MS 500
#define LINK_HELLO_LIMIT_MS 12000
#define LINK_PING_BUSY_MS 5000
#define LINK_PING_IDLE_MS 60000
#define LINK_PONG_LIMIT_MS 15000
#define LINK_UNREACHABLE_MS 15000
#define LINK_BACKOFF_MIN_MS 20
#define LINK_BACKOFF_MAX_MS 2000
#define LINK_VIOLATION_MIN_MS 100

#define LINK_EVENT_GAP 0 /* dropped_bytes: the oldest event kept */

/* A request that waits for its answer. Lives on the waiter's stack or in the waiter's hands. */
struct link_request {
    uint32_t tag;
    uint8_t type;       /* of the request */
    uint8_t reply_type; /* that is expected beside ERROR */
    uint8_t *payload;   /* owned: kept to be repeated */
    size_t payload_len;
    bool done, failed; /* failed: the link has ended */
    uint8_t got_type;
    uint8_t *reply; /* owned */
    size_t reply_len;
    GCond cond;
};

enum link_sub_phase {
    LINK_SUB_ASKED, /* SUBSCRIBE is on its way */
    LINK_SUB_ACTIVE,
    LINK_SUB_ENDED, /* the last event is here */
    LINK_SUB_LOST,
};

/* Everything is guarded by the link's lock, but link, id and session_id, which do not change. */
struct sp_link_sub {
    struct sp_link *link; /* a reference */
    uint32_t id;
    char session_id[SP_MSG_SESSION_ID_MAX + 1];
    enum link_sub_phase phase;
    GCond cond;
    /* struct sp_link_event *, bounded by the credit; one of kind LINK_EVENT_GAP stands for a gap */
    GQueue events;
    size_t queued_bytes;
    bool waiting;          /* the reader waits on cond */
    uint64_t last_event;   /* received, or where it was asked to begin */
    uint64_t credit_total; /* since the last SUBSCRIBE */
    uint64_t received;     /* EVENT payload since the last SUBSCRIBE */
    uint64_t weight;       /* of all events received */
    uint64_t acked_event, acked_weight, sent_ack_event, sent_ack_weight;
    uint64_t gap_oldest, gap_next; /* of the gap pulled last */
    bool answered;                 /* the first SUBSCRIBE has its answer */
    GError *refused;               /* the agent's ERROR to it */
    char *reason;                  /* LOST; NULL there: the worker stops */
    bool suspended;                /* LOST, but only here: the session goes on later */
};

/* The input side of a session, shared by its handles. Guarded by the link's lock. */
struct link_input {
    char session_id[SP_MSG_SESSION_ID_MAX + 1];
    unsigned handles;
    bool busy; /* one writer at a time */
    bool known;
    uint64_t accepted, window_end;
    bool closed;
    GCond cond;
};

/* Lock order: the sandbox table, then the sessions, then this lock. It is held over a send that
 * does not block (MSG_DONTWAIT), never over a wait for the guest. */
struct sp_link {
    gint refs;
    struct sp_link_spec spec; /* own copies of sandbox_id and pidfd */
    char *sandbox_id;
    GThread *thread;
    int wake_fd; /* eventfd(2): look at the state again */

    GMutex lock;
    GCond changed; /* state, room in out */
    enum sp_link_state state;
    bool stopping, suspended; /* suspended: why it stops */
    bool paused, hang_up; /* hang_up: the thread is to close the connection */
    char *stop_reason;
    char error[160];
    int64_t down_since_us;
    unsigned connects, violations;

    int fd; /* opened and closed by the thread only, under the lock */
    bool send_failed;
    uint8_t *out; /* bytes out[out_at..out_len) wait to be sent */
    size_t out_at, out_len, out_size;

    uint32_t next_tag;
    GHashTable *requests; /* tag → struct link_request *, not owned */
    GHashTable *subs;     /* id → struct sp_link_sub *, not owned */
    GHashTable *inputs;   /* session id → struct link_input *, owned */

    /* Of this connection; the thread's own, but for the last two. */
    uint8_t nonce[SP_MSG_NONCE_BYTES];
    int64_t connected_us, hello_sent_us, last_rx_us, ping_sent_us;
    int hello_wait_ms;
    int backoff_ms;
    uint8_t *in;
    size_t in_len;
    bool instance_known;
    uint8_t instance[SP_MSG_NONCE_BYTES];
    bool identified;
    uint32_t features;
};

/* --- link_io.c: bytes. All with the lock held. */
/* Puts a frame into the outgoing bytes; nothing while the link is not ready (it is repeated then).
 */
void sp_link_put(struct sp_link *link, uint8_t type, uint32_t tag, const uint8_t *payload,
                 size_t len);
void sp_link_put_raw(struct sp_link *link, const void *bytes, size_t len);
/* Sends what can be sent now. */
void sp_link_flush(struct sp_link *link);
/* Reads what is there. false: end of file or an error; the text says which. */
bool sp_link_fill(struct sp_link *link, GError **error);
/* Takes whole frames from the input. false: a breach of the protocol. */
bool sp_link_parse(struct sp_link *link, GError **error);
void sp_link_send_hello(struct sp_link *link, bool after_silence);
void sp_link_drop_connection(struct sp_link *link);

/* --- link_dispatch.c. With the lock held; false: a breach of the protocol. */
bool sp_link_dispatch(struct sp_link *link, const struct sp_frame_header *header,
                      const uint8_t *payload, GError **error);
/* After HELLO_OK: repeats what is not answered. */
void sp_link_resume(struct sp_link *link);
/* Ends all that waits; reason NULL: the worker stops. */
void sp_link_end_all(struct sp_link *link, const char *reason);

/* --- link_request.c */
uint32_t sp_link_new_tag(struct sp_link *link);
/* Registers and sends a request whose payload is packed; with the lock held. false: link has ended.
 */
bool sp_link_begin(struct sp_link *link, struct link_request *request, GError **error);
/* Waits for the answer; releases the lock meanwhile. true: reply_type came. */
bool sp_link_finish(struct sp_link *link, struct link_request *request, int64_t deadline_us,
                    GError **error);
void link_request_clear(struct link_request *request);
/* Takes the packed bytes as payload; an overflow is SP_ERROR_PAYLOAD_TOO_LARGE. */
bool link_request_init(struct link_request *request, uint8_t type, uint8_t reply_type,
                       const struct sp_pack *packed, GError **error);
/* The GError that an ERROR frame stands for. */
void sp_link_agent_error(const uint8_t *payload, size_t len, GError **error);
void sp_link_set_ended(struct sp_link *link, GError **error);
void sp_link_set_paused(GError **error);

/* --- link_sub.c. With the lock held. */
void sp_link_sub_send(struct sp_link_sub *sub);
bool sp_link_sub_on_subscribed(struct sp_link_sub *sub, const uint8_t *payload, size_t len,
                               GError **error);
bool sp_link_sub_on_event(struct sp_link_sub *sub, const uint8_t *payload, size_t len,
                          GError **error);
void sp_link_sub_lose(struct sp_link_sub *sub, const char *reason);

/* --- link_stdin.c. With the lock held. */
void sp_link_input_on_ack(struct sp_link *link, const struct sp_msg_stdin_ack *ack);
