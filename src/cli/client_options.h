/* What all verbs that talk to a server have in common. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "cli/options.h"

/* First member of every options struct. */
struct sp_help_option {
    bool help;
};

struct sp_client_options {
    struct sp_help_option help;
    bool json;
    char *state; /* NULL: SP_STATE_DIR_DEFAULT */
};

#define SP_STATE_DIR_DEFAULT "/var/lib/space"

/* clang-format off */
#define SP_OPTION_HELP                                                                             \
    {                                                                                              \
        "help", 'h', SP_OPTION_FLAG, offsetof(struct sp_help_option, help), NULL,                  \
            "show this page", 0                                                                    \
    }
/* Rows for an option table whose struct begins with struct sp_client_options. */
#define SP_OPTIONS_CLIENT                                                                          \
    {"json", 0, SP_OPTION_FLAG, offsetof(struct sp_client_options, json), NULL,                    \
     "print the API's own JSON", 0},                                                               \
        {"state", 0, SP_OPTION_STRING, offsetof(struct sp_client_options, state), "DIR",           \
         "state directory whose client.conf names the server (default " SP_STATE_DIR_DEFAULT ")",  \
         0},                                                                                       \
        SP_OPTION_HELP
/* clang-format on */
