/*
 * Messages of the agent link: the payloads of the frames in docs/agent-protocol.md, as structs.
 *
 * Encoders append to a sp_pack; the caller looks at p->overflow once at the end. Decoders are
 * strict: false when the payload is too short, has bytes left over, or breaks a limit below; *ret
 * is untouched then. Every span of a decoded message borrows the payload. Both directions of every
 * message are here, for the two ends of the link and for the tests. Nothing beyond libc: no I/O, no
 * allocation.
 */
#pragma once

#include "wire/agent_frame.h"

#include <string.h>

#define SP_AGENT_VERSION 1u

#define SP_MSG_NONCE_BYTES 16u
#define SP_MSG_PING_MAX 64u
#define SP_MSG_SESSION_ID_MAX 64u /* bytes, at least 1 */
#define SP_MSG_NAME_MAX 256u      /* sandbox id, build, user, error code */
#define SP_MSG_TEXT_MAX 1024u     /* error message */
#define SP_MSG_PATH_MAX 4095u     /* cwd */
#define SP_MSG_HOSTNAME_MAX 64u   /* Linux HOST_NAME_MAX */
#define SP_MSG_LIST_MAX 8192u     /* items of a list<str> */
#define SP_MSG_ENTROPY_MAX 512u   /* bytes */
#define SP_MSG_HOLD_TIMEOUT_MS_MAX 10000u
#define SP_MSG_HOLD_TIMEOUT_MS_DEFAULT 2000u /* when a HOLD says 0 */
#define SP_MSG_EVENT_DATA_MIN 1024u          /* bounds of hello.max_event_data */
#define SP_MSG_EVENT_DATA_MAX 60000u
#define SP_MSG_EVENT_OVERHEAD 9u /* bytes of an EVENT payload before its rest */
#define SP_MSG_ITEM_OVERHEAD 4u  /* bytes of a list item beside its text */
/* What argv and env of a START, or env of an IDENTITY, may take in all (texts and overhead of the
 * items), so that the frame also holds the other fields at their largest. */
#define SP_MSG_LISTS_BYTES_MAX 61000u

/* A borrowed string as a span; NULL is the empty one. */
static inline struct sp_span sp_span_of(const char *s)
{
    return (struct sp_span){(const uint8_t *)s, s ? strlen(s) : 0};
}

/* A list<str>. To encode, set count and strings; a decoded list (which can be encoded again) has
 * strings NULL and the checked items in raw: walk them with sp_msg_list_next. */
struct sp_msg_list {
    uint32_t count;
    const char *const *strings;
    struct sp_span raw;
};
/* Takes the next item of a decoded list: *at is the byte offset, 0 at first. false at the end. */
bool sp_msg_list_next(const struct sp_msg_list *list, size_t *at, struct sp_span *ret);

struct sp_msg_hello {
    uint32_t version_min, version_max;
    uint8_t nonce[SP_MSG_NONCE_BYTES];
    uint32_t max_event_data; /* bytes */
    struct sp_span sandbox_id;
};
void sp_msg_hello_encode(struct sp_pack *p, const struct sp_msg_hello *m);
bool sp_msg_hello_decode(const uint8_t *bytes, size_t len, struct sp_msg_hello *ret);

enum {
    SP_AGENT_FEATURE_SESSION_CGROUPS = 1,
    SP_AGENT_FEATURE_OOM = 2,
    SP_AGENT_FEATURE_HOLD = 4, /* HOLD freezes the user processes; without: it only stops STARTs */
};

struct sp_msg_hello_ok {
    uint32_t version; /* 0: no common version */
    uint8_t nonce[SP_MSG_NONCE_BYTES];
    uint8_t instance[SP_MSG_NONCE_BYTES];
    uint8_t identified;
    uint32_t features; /* SP_AGENT_FEATURE_* */
    struct sp_span build;
};
void sp_msg_hello_ok_encode(struct sp_pack *p, const struct sp_msg_hello_ok *m);
bool sp_msg_hello_ok_decode(const uint8_t *bytes, size_t len, struct sp_msg_hello_ok *ret);

struct sp_msg_error {
    struct sp_span code, message;
};
void sp_msg_error_encode(struct sp_pack *p, const struct sp_msg_error *m);
bool sp_msg_error_decode(const uint8_t *bytes, size_t len, struct sp_msg_error *ret);

struct sp_msg_identity {
    uint64_t realtime_ns;   /* 0: leave the clock */
    struct sp_span entropy; /* empty, or 32…SP_MSG_ENTROPY_MAX bytes */
    struct sp_span hostname;
    struct sp_span machine_id; /* empty or 32 lower-case hex digits */
    struct sp_msg_list env;    /* "K=V" each */
    uint32_t pids_max;         /* 0: leave */
    uint64_t memory_reserve_bytes;
};
void sp_msg_identity_encode(struct sp_pack *p, const struct sp_msg_identity *m);
bool sp_msg_identity_decode(const uint8_t *bytes, size_t len, struct sp_msg_identity *ret);

enum { SP_HOLD_SYNC = 1 }; /* write file systems back once nobody runs */

struct sp_msg_hold {
    uint32_t flags;      /* SP_HOLD_*; other bits are refused */
    uint32_t timeout_ms; /* for the freeze; 0: the default */
};
void sp_msg_hold_encode(struct sp_pack *p, const struct sp_msg_hold *m);
bool sp_msg_hold_decode(const uint8_t *bytes, size_t len, struct sp_msg_hold *ret);

struct sp_msg_release {
    uint64_t realtime_ns; /* 0: leave the clock */
};
void sp_msg_release_encode(struct sp_pack *p, const struct sp_msg_release *m);
bool sp_msg_release_decode(const uint8_t *bytes, size_t len, struct sp_msg_release *ret);

enum sp_msg_overflow { SP_OVERFLOW_BLOCK = 0, SP_OVERFLOW_DROP = 1 };

struct sp_msg_start {
    struct sp_span session_id;
    struct sp_msg_list argv; /* at least one, the first not empty */
    struct sp_msg_list env;  /* "K=V" each */
    struct sp_span cwd, user;
    uint8_t stdin_open; /* 0 or 1 */
    uint64_t timeout_ms, grace_ms;
    uint8_t overflow; /* enum sp_msg_overflow */
    uint32_t ring_bytes;
    uint16_t rows, cols;
};
void sp_msg_start_encode(struct sp_pack *p, const struct sp_msg_start *m);
bool sp_msg_start_decode(const uint8_t *bytes, size_t len, struct sp_msg_start *ret);

enum {
    SP_EXIT_CORE_DUMPED = 1,
    SP_EXIT_OOM = 2,
    SP_EXIT_TIMED_OUT = 4,
    SP_EXIT_PIPE_HELD_OPEN = 8,
};

struct sp_msg_exit {
    int32_t exit_code, signal;
    uint8_t flags; /* SP_EXIT_* */
    uint64_t duration_us, cpu_us, peak_memory_bytes;
};

enum { SP_MSG_SESSION_RUNNING = 1, SP_MSG_SESSION_ENDED = 2 };

/* STARTED: the answer to START and SESSION_STAT. */
struct sp_msg_session {
    uint8_t state; /* SP_MSG_SESSION_RUNNING or _ENDED */
    int32_t pid;
    uint64_t oldest_event, next_event;
    struct sp_msg_exit exit;
    uint8_t failed;
};
void sp_msg_session_encode(struct sp_pack *p, const struct sp_msg_session *m);
bool sp_msg_session_decode(const uint8_t *bytes, size_t len, struct sp_msg_session *ret);

/* SESSION_STAT, FORGET and STDIN_QUERY: a session id alone. */
void sp_msg_ref_encode(struct sp_pack *p, struct sp_span session_id);
bool sp_msg_ref_decode(const uint8_t *bytes, size_t len, struct sp_span *ret_session_id);

enum { SP_SIGNAL_GROUP = 0, SP_SIGNAL_SESSION = 1 };

struct sp_msg_signal {
    struct sp_span session_id;
    int32_t signal; /* 1…64 */
    uint8_t scope;  /* SP_SIGNAL_* */
};
void sp_msg_signal_encode(struct sp_pack *p, const struct sp_msg_signal *m);
bool sp_msg_signal_decode(const uint8_t *bytes, size_t len, struct sp_msg_signal *ret);

struct sp_msg_process {
    struct sp_span session_id;
    int32_t pid;
    struct sp_span user;
    struct sp_msg_list argv;
    uint64_t started_realtime_ms, cpu_ms, rss_bytes;
};
struct sp_msg_process_list {
    uint8_t truncated;
    uint32_t count;
    struct sp_span raw; /* the checked items: walk them with sp_msg_process_next */
};
/* The encoder writes the two head fields; append `count` items with sp_msg_process_encode. */
void sp_msg_process_list_encode(struct sp_pack *p, uint8_t truncated, uint32_t count);
void sp_msg_process_encode(struct sp_pack *p, const struct sp_msg_process *m);
bool sp_msg_process_list_decode(const uint8_t *bytes, size_t len, struct sp_msg_process_list *ret);
/* Takes the next process: *at is the byte offset, 0 at first. false at the end. */
bool sp_msg_process_next(const struct sp_msg_process_list *list, size_t *at,
                         struct sp_msg_process *ret);

struct sp_msg_resize {
    struct sp_span session_id;
    uint16_t rows, cols;
};
void sp_msg_resize_encode(struct sp_pack *p, const struct sp_msg_resize *m);
bool sp_msg_resize_decode(const uint8_t *bytes, size_t len, struct sp_msg_resize *ret);

struct sp_msg_subscribe {
    struct sp_span session_id;
    uint64_t after_event;
    uint64_t credit_bytes;
};
void sp_msg_subscribe_encode(struct sp_pack *p, const struct sp_msg_subscribe *m);
bool sp_msg_subscribe_decode(const uint8_t *bytes, size_t len, struct sp_msg_subscribe *ret);

struct sp_msg_subscribed {
    uint64_t oldest_event, next_event, first_event;
    uint8_t gap;
};
void sp_msg_subscribed_encode(struct sp_pack *p, const struct sp_msg_subscribed *m);
bool sp_msg_subscribed_decode(const uint8_t *bytes, size_t len, struct sp_msg_subscribed *ret);

struct sp_msg_credit {
    uint64_t credit_bytes, acked_event;
};
void sp_msg_credit_encode(struct sp_pack *p, const struct sp_msg_credit *m);
bool sp_msg_credit_decode(const uint8_t *bytes, size_t len, struct sp_msg_credit *ret);

enum sp_event_kind {
    SP_EVENT_STARTED = 1,
    SP_EVENT_STDOUT = 2,
    SP_EVENT_STDERR = 3,
    SP_EVENT_DROPPED = 4,
    SP_EVENT_EXITED = 5,
    SP_EVENT_ERROR = 6,
};

/* An EVENT. Which fields count is told by kind; the others are zero. */
struct sp_msg_event {
    uint64_t event_id;
    uint8_t kind;
    int32_t pid;            /* STARTED */
    struct sp_span data;    /* STDOUT, STDERR: at least one byte */
    uint8_t dropped_stream; /* DROPPED: SP_EVENT_STDOUT or SP_EVENT_STDERR */
    uint64_t dropped_bytes;
    struct sp_msg_exit exit;    /* EXITED */
    struct sp_msg_error failed; /* ERROR */
};
void sp_msg_event_encode(struct sp_pack *p, const struct sp_msg_event *m);
bool sp_msg_event_decode(const uint8_t *bytes, size_t len, struct sp_msg_event *ret);
/* The same without the leading event id: how an event is kept in the agent's ring. */
void sp_msg_event_body_encode(struct sp_pack *p, const struct sp_msg_event *m);

/* STDIN (data used) and STDIN_CLOSE (data empty). */
struct sp_msg_stdin {
    struct sp_span session_id;
    uint64_t offset;
    struct sp_span data;
};
void sp_msg_stdin_encode(struct sp_pack *p, const struct sp_msg_stdin *m);
bool sp_msg_stdin_decode(const uint8_t *bytes, size_t len, struct sp_msg_stdin *ret);
void sp_msg_stdin_close_encode(struct sp_pack *p, struct sp_span session_id, uint64_t offset);
bool sp_msg_stdin_close_decode(const uint8_t *bytes, size_t len, struct sp_msg_stdin *ret);

struct sp_msg_stdin_ack {
    struct sp_span session_id;
    uint64_t accepted, window_end;
    uint8_t closed;
};
void sp_msg_stdin_ack_encode(struct sp_pack *p, const struct sp_msg_stdin_ack *m);
bool sp_msg_stdin_ack_decode(const uint8_t *bytes, size_t len, struct sp_msg_stdin_ack *ret);
