#include "node/brake.h"

bool sp_brake_allows(struct sp_brake *brake, int64_t now_ms)
{
    unsigned limit = brake->found / 2 > SP_BRAKE_MIN ? brake->found / 2 : SP_BRAKE_MIN;
    if (brake->removed < limit) {
        brake->removed++;
        return true;
    }
    if (!brake->holding) {
        brake->holding = true;
        brake->release_ms = now_ms + SP_BRAKE_HOLD_MS;
    }
    if (now_ms < brake->release_ms)
        return false;
    brake->removed++;
    return true;
}
