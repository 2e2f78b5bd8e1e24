/*
 * The link to the agent of one sandbox (docs/agent-protocol.md): requests, event streams, input.
 *
 * One thread a link reads, connects again after a cut and watches the sandbox's pidfd. The agent is
 * hostile: what it says is bounded and checked; a breach of the protocol closes the connection, is
 * counted, and a new one is made after a growing pause. The state that matters is in the agent, so
 * a new connection goes on where the old one broke: requests without an answer are repeated,
 * subscriptions continue behind the last whole event.
 *
 * Deadlines are in microseconds of CLOCK_MONOTONIC (sp_time_monotonic_us()). Errors:
 * SP_ERROR_UNAVAILABLE when the sandbox is gone or does not answer in time; what the agent refuses
 * has the code that fits.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "wire/agent_msg.h"

struct sp_link;
struct sp_link_sub;

enum sp_link_state {
    SP_LINK_CONNECTING, /* not connected, or the HELLO has not been answered yet */
    SP_LINK_READY,
    SP_LINK_GONE, /* the sandbox's process has ended */
    SP_LINK_STOPPED,
};

struct sp_link_spec {
    const char *sandbox_id; /* copied */
    /* A new connection: a non-blocking stream socket, or -1. Called in the link's thread, may block
     * for some seconds. connect_user must live until sp_link_stop() has returned. */
    int (*connect)(void *connect_user, GError **error);
    void *connect_user;
    int pidfd;               /* readable when the sandbox has ended; duplicated. -1: none */
    uint32_t max_event_data; /* bytes; HELLO */
    /* Called once from the link's thread when the process has ended; must not call sp_link_stop().
     */
    void (*on_gone)(void *gone_user);
    void *gone_user;
};

struct sp_link_info {
    enum sp_link_state state;
    bool identified;     /* as the agent said in its last HELLO_OK */
    uint32_t features;   /* SP_AGENT_FEATURE_* */
    unsigned connects;   /* connections that came to READY */
    unsigned violations; /* breaches of the protocol by the agent */
    int64_t down_ms;     /* time since it was last READY; 0 when it is */
    char error[160];     /* why it is not READY; for people */
};

/* Starts the thread. The reference is the caller's. */
struct sp_link *sp_link_start(const struct sp_link_spec *spec, GError **error);
/* Ends the thread and everything that waits. reason NULL: the worker stops and the sandbox goes on
 * (streams are cut); else the sandbox ends: streams get it as their last word. Idempotent. */
void sp_link_stop(struct sp_link *link, const char *reason);
/* The same when the sandbox is suspended: what runs in it goes on later, on another link. Streams
 * end with SP_PULL_SUSPENDED behind what has arrived, requests under way with SP_ERROR_CONFLICT. */
void sp_link_suspend(struct sp_link *link);
/* From now on the end is told to another, and the sandbox has another id (a pool's member becomes a
 * sandbox). False: it has ended or been stopped already, and the one of before is told. */
bool sp_link_rehome(struct sp_link *link, const char *sandbox_id, void (*on_gone)(void *),
                    void *gone_user);
struct sp_link *sp_link_ref(struct sp_link *link);
void sp_link_unref(struct sp_link *link);

void sp_link_info(struct sp_link *link, struct sp_link_info *ret);
/* Waits until the link is READY. */
bool sp_link_wait_ready(struct sp_link *link, int64_t deadline_us, GError **error);

/* --- requests: each waits for the answer */
bool sp_link_ping(struct sp_link *link, int64_t deadline_us, GError **error);
bool sp_link_identity(struct sp_link *link, const struct sp_msg_identity *identity,
                      int64_t deadline_us, GError **error);
/* HOLD: the user's processes stand still inside, and with SP_HOLD_SYNC what they have written is on
 * the disk. RELEASE ends it and sets the clock (0: leaves it). Both are safe to repeat. */
bool sp_link_hold(struct sp_link *link, uint32_t flags, int64_t deadline_us, GError **error);
bool sp_link_release(struct sp_link *link, uint64_t realtime_ns, int64_t deadline_us,
                     GError **error);
/* While the sandbox is paused nothing is sent or expected: no pings, no connecting, no time-out of
 * the connection. New requests fail with SP_ERROR_FAILED_PRECONDITION, those under way wait on (for
 * their own deadlines; input as long as its writer), subscriptions stay. Idempotent. */
void sp_link_pause(struct sp_link *link, bool paused);
/* Closes the connection of a paused link and waits until it is closed, 2 s at most: what saves the
 * sandbox may find no trace of us. It connects again when the sandbox goes on. */
bool sp_link_hang_up(struct sp_link *link, GError **error);
/* START: safe to repeat, also after a failure. */
bool sp_link_session_start(struct sp_link *link, const struct sp_msg_start *start,
                           int64_t deadline_us, struct sp_msg_session *ret, GError **error);
bool sp_link_session_stat(struct sp_link *link, const char *session_id, int64_t deadline_us,
                          struct sp_msg_session *ret, GError **error);
bool sp_link_signal(struct sp_link *link, const struct sp_msg_signal *signal, int64_t deadline_us,
                    GError **error);
/* Lets the agent drop an ended session. Does not wait, and is lost with the connection: the agent
 * drops old sessions by itself. */
void sp_link_forget(struct sp_link *link, const char *session_id);
/* Calls fn for each live session; the process is borrowed for the call. */
bool sp_link_processes(struct sp_link *link, int64_t deadline_us,
                       void (*fn)(void *user, const struct sp_msg_process *process), void *user,
                       GError **error);
bool sp_link_resize(struct sp_link *link, const char *session_id, uint16_t rows, uint16_t cols,
                    int64_t deadline_us, GError **error);

/* --- events */
/* An event with all it needs; free with g_free(). */
struct sp_link_event {
    uint64_t id;
    uint8_t kind; /* enum sp_event_kind */
    uint8_t dropped_stream;
    int32_t pid;
    uint64_t dropped_bytes;
    struct sp_msg_exit exit;
    uint64_t weight_end; /* of all events up to this one: for sp_link_sub_ack() */
    uint32_t code_len;   /* ERROR: the code is the first code_len bytes of data, then the message */
    uint32_t data_len;
    uint8_t data[]; /* STDOUT, STDERR: the bytes */
};

enum sp_pull {
    SP_PULL_EVENT,
    SP_PULL_TIMEOUT,
    SP_PULL_GAP,         /* events are missing here; it goes on with the next event */
    SP_PULL_END,         /* the last event (EXITED or ERROR) has been pulled before */
    SP_PULL_LOST,        /* no more will come: the sandbox or the session is gone */
    SP_PULL_UNREACHABLE, /* the agent has not answered for long; the session may still run */
    SP_PULL_STOPPED,     /* the worker stops; nothing is known about the session's end */
    SP_PULL_SUSPENDED,   /* the sandbox is suspended; the session goes on when it is woken */
};

/* Subscribes behind after_event (0: from the first). With start, START goes before it in the same
 * packet; ret_session (may be NULL) is its answer. NULL on failure: SP_ERROR_NOT_FOUND without such
 * a session, SP_ERROR_INVALID_REQUEST when after_event does not exist yet. */
struct sp_link_sub *sp_link_subscribe(struct sp_link *link, const char *session_id,
                                      const struct sp_msg_start *start, uint64_t after_event,
                                      int64_t deadline_us, struct sp_msg_session *ret_session,
                                      GError **error);
/* The next event, which the caller frees. One thread at a time. */
enum sp_pull sp_link_sub_pull(struct sp_link_sub *sub, int64_t deadline_us,
                              struct sp_link_event **ret);
/* Whether a pull would return at once. */
bool sp_link_sub_ready(struct sp_link_sub *sub);
/* After SP_PULL_GAP: the oldest event that the agent still has, and the one that follows. */
void sp_link_sub_gap(struct sp_link_sub *sub, uint64_t *ret_oldest, uint64_t *ret_next);
/* After SP_PULL_LOST: why. Borrowed. */
const char *sp_link_sub_reason(struct sp_link_sub *sub);
/* Says that everything up to an event (its id and weight_end) has reached its reader: the agent may
 * forget it when it needs room. */
void sp_link_sub_ack(struct sp_link_sub *sub, uint64_t event_id, uint64_t weight_end);
void sp_link_sub_free(struct sp_link_sub *sub);

/* --- input */
struct sp_link_input;
struct sp_link_input_state {
    uint64_t accepted; /* bytes of input that the agent has taken, since the session began */
    bool closed;       /* no more is taken */
};
/* A handle to write to a session's stdin; nothing is asked of the agent yet. Several handles of a
 * session may be used at once: their writes queue up, each in one piece. */
struct sp_link_input *sp_link_input_open(struct sp_link *link, const char *session_id);
void sp_link_input_free(struct sp_link_input *input);
/* Appends bytes: waits for the window, that is for the command to read. cancelled (may be NULL) is
 * asked about once a second. *ret_taken: how much the agent has surely taken, set also on failure.
 * SP_ERROR_FAILED_PRECONDITION: the process has ended or its stdin is closed. */
bool sp_link_input_write(struct sp_link_input *input, const void *bytes, size_t len,
                         int64_t deadline_us, bool (*cancelled)(void *user), void *user,
                         size_t *ret_taken, GError **error);
/* End of file for the command, behind what was written. No error when it was closed before. */
bool sp_link_input_close(struct sp_link_input *input, int64_t deadline_us, GError **error);
/* As the agent said last. */
void sp_link_input_state(struct sp_link_input *input, struct sp_link_input_state *ret);
