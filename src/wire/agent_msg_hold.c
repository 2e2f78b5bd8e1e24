/* HOLD and RELEASE: user processes stand still while a machine is saved or copied. */
#include "wire/agent_msg.h"

void sp_msg_hold_encode(struct sp_pack *p, const struct sp_msg_hold *m)
{
    sp_pack_u32(p, m->flags);
    sp_pack_u32(p, m->timeout_ms);
}

bool sp_msg_hold_decode(const uint8_t *bytes, size_t len, struct sp_msg_hold *ret)
{
    struct sp_unpack u;
    struct sp_msg_hold m = {0};
    sp_unpack_init(&u, bytes, len);
    m.flags = sp_unpack_u32(&u);
    m.timeout_ms = sp_unpack_u32(&u);
    if (!sp_unpack_done(&u) || (m.flags & ~(uint32_t)SP_HOLD_SYNC) != 0 ||
        m.timeout_ms > SP_MSG_HOLD_TIMEOUT_MS_MAX)
        return false;
    *ret = m;
    return true;
}

void sp_msg_release_encode(struct sp_pack *p, const struct sp_msg_release *m)
{
    sp_pack_u64(p, m->realtime_ns);
}

bool sp_msg_release_decode(const uint8_t *bytes, size_t len, struct sp_msg_release *ret)
{
    struct sp_unpack u;
    struct sp_msg_release m = {0};
    sp_unpack_init(&u, bytes, len);
    m.realtime_ns = sp_unpack_u64(&u);
    if (!sp_unpack_done(&u))
        return false;
    *ret = m;
    return true;
}
