/* The verbs' functions and option tables, for the table in commands.c. Each returns the exit code.
 */
#pragma once

#include "cli/command.h"

#define SP_VERB(name)                                                                              \
    extern const struct sp_option sp_##name##_options[];                                           \
    extern const size_t sp_##name##_options_bytes;                                                 \
    int sp_##name##_verb(const struct sp_invocation *invocation)

SP_VERB(completion);
SP_VERB(create);
SP_VERB(doctor);
SP_VERB(down);
SP_VERB(exec);
SP_VERB(fork);
SP_VERB(get);
SP_VERB(help);
SP_VERB(launcher);
SP_VERB(ls);
SP_VERB(ops);
SP_VERB(pause);
SP_VERB(rm);
SP_VERB(rollback);
SP_VERB(run);
SP_VERB(server);
SP_VERB(snapshot);
SP_VERB(snapshot_get);
SP_VERB(snapshot_ls);
SP_VERB(snapshot_rm);
SP_VERB(suspend);
SP_VERB(template_build);
SP_VERB(template_ls);
SP_VERB(template_rm);
SP_VERB(up);
SP_VERB(wake);
SP_VERB(worker);
