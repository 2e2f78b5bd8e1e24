/* Decode and encode again, for each message: what the unit test and the fuzzer share. */
#pragma once

#include "wire/agent_msg.h"

#define RECODE(name)                                                                               \
    static inline bool recode_##name(const uint8_t *bytes, size_t len, struct sp_pack *out)        \
    {                                                                                              \
        struct sp_msg_##name m;                                                                    \
        if (!sp_msg_##name##_decode(bytes, len, &m))                                               \
            return false;                                                                          \
        sp_msg_##name##_encode(out, &m);                                                           \
        return true;                                                                               \
    }
RECODE(hello)
RECODE(hello_ok)
RECODE(error)
RECODE(identity)
RECODE(hold)
RECODE(release)
RECODE(start)
RECODE(session)
RECODE(signal)
RECODE(resize)
RECODE(subscribe)
RECODE(subscribed)
RECODE(credit)
RECODE(event)
RECODE(stdin)
RECODE(stdin_ack)

static inline bool recode_ref(const uint8_t *bytes, size_t len, struct sp_pack *out)
{
    struct sp_span id;
    if (!sp_msg_ref_decode(bytes, len, &id))
        return false;
    sp_msg_ref_encode(out, id);
    return true;
}

static inline bool recode_stdin_close(const uint8_t *bytes, size_t len, struct sp_pack *out)
{
    struct sp_msg_stdin m;
    if (!sp_msg_stdin_close_decode(bytes, len, &m))
        return false;
    sp_msg_stdin_close_encode(out, m.session_id, m.offset);
    return true;
}

static inline bool recode_process_list(const uint8_t *bytes, size_t len, struct sp_pack *out)
{
    struct sp_msg_process_list m;
    if (!sp_msg_process_list_decode(bytes, len, &m))
        return false;
    sp_msg_process_list_encode(out, m.truncated, m.count);
    struct sp_msg_process process;
    for (size_t at = 0; sp_msg_process_next(&m, &at, &process);)
        sp_msg_process_encode(out, &process);
    return true;
}

typedef bool recode_fn(const uint8_t *bytes, size_t len, struct sp_pack *out);

static const struct {
    const char *name;
    recode_fn *recode;
} recodes[] = {
    {"hello", recode_hello},
    {"hello_ok", recode_hello_ok},
    {"error", recode_error},
    {"identity", recode_identity},
    {"start", recode_start},
    {"session", recode_session},
    {"ref", recode_ref},
    {"signal", recode_signal},
    {"process_list", recode_process_list},
    {"resize", recode_resize},
    {"subscribe", recode_subscribe},
    {"subscribed", recode_subscribed},
    {"credit", recode_credit},
    {"event", recode_event},
    {"stdin", recode_stdin},
    {"stdin_close", recode_stdin_close},
    {"stdin_ack", recode_stdin_ack},
    {"hold", recode_hold},
    {"release", recode_release},
};
