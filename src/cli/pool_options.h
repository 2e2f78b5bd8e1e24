/* The options of `space up` and `space worker` about warm pools (docs/pools.md). */
#pragma once

#include "cli/options.h"

#define SP_POOL_MIN_DEFAULT 2u
#define SP_POOL_MAX_DEFAULT 16u

/* As given; NULL: not given. Owned by the options' table. */
struct sp_pool_options {
    char *min, *max, *memory_mb;
};

/* Rows of an option table; `member` is the struct sp_pool_options in `type`. */
#define SP_OPTIONS_POOL(type, member)                                                              \
    {"pool-min",                                                                                   \
     0,                                                                                            \
     SP_OPTION_STRING,                                                                             \
     offsetof(type, member.min),                                                                   \
     "N",                                                                                          \
     "sandboxes kept ready for each template and shape in use (default 2)",                        \
     0},                                                                                           \
        {"pool-max",                                                                               \
         0,                                                                                        \
         SP_OPTION_STRING,                                                                         \
         offsetof(type, member.max),                                                               \
         "N",                                                                                      \
         "sandboxes kept ready in all (default 16; 0: none)",                                      \
         0},                                                                                       \
    {                                                                                              \
        "pool-memory-mb", 0, SP_OPTION_STRING, offsetof(type, member.memory_mb), "MB",             \
            "most memory that these may take (default: an eighth of what is free)", 0              \
    }

struct sp_pool_numbers {
    unsigned min, max;
    int64_t memory_mb; /* 0: the default */
};
/* With the defaults. SP_ERROR_INVALID_REQUEST names the option. */
bool sp_pool_options_read(const struct sp_pool_options *options, struct sp_pool_numbers *ret,
                          GError **error);
