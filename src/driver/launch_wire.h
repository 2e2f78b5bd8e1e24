/* Messages between the worker and its launcher: always the same executable, so plain structs. */
#pragma once

#include <stdint.h>

enum sp_launch_kind { SP_LAUNCH_KIND_SPAWN = 1, SP_LAUNCH_KIND_USER_NAMESPACE };

struct sp_launch_request {
    uint32_t kind;
    uint32_t serial;       /* repeated in the reply */
    uint32_t first, count; /* SP_LAUNCH_KIND_USER_NAMESPACE */
    /* SP_LAUNCH_KIND_SPAWN: an encoded plan follows, and its fds */
};

struct sp_launch_reply {
    uint32_t serial;
    int32_t pid;          /* of SPAWN; the message carries the pidfd (or the namespace's fd) */
    int32_t failed_place; /* step index or enum sp_launch_place */
    int32_t failed_errno; /* 0: success */
};
