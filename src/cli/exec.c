/* `space exec`: a command in a sandbox that is there already. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/client_options.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/remote.h"
#include "cli/verbs.h"

struct exec_options {
    struct sp_client_options client; /* first */
    char **env;
    char *cwd;
    char *user;
    char *timeout;
    bool interactive;
};

#define OFFSET(member) offsetof(struct exec_options, member)
const struct sp_option sp_exec_options[] = {
    {"env", 'e', SP_OPTION_LIST, OFFSET(env), "K=V",
     "environment variable; K alone takes our own value; may be repeated", 0},
    {"cwd", 'w', SP_OPTION_STRING, OFFSET(cwd), "DIR", "directory to run in", 0},
    {"user", 'u', SP_OPTION_STRING, OFFSET(user), "USER", "user of the command", 0},
    {"timeout", 0, SP_OPTION_STRING, OFFSET(timeout), "DURATION",
     "end the command after this time (30s, 10m); exit code 124", 0},
    {"interactive", 'i', SP_OPTION_FLAG, OFFSET(interactive), NULL,
     "feed our standard input to the command", 0},
    SP_OPTIONS_CLIENT,
    {0},
};
const size_t sp_exec_options_bytes = sizeof(struct exec_options);

int sp_exec_verb(const struct sp_invocation *invocation)
{
    const struct exec_options *o = invocation->options;
    char **argv = invocation->operands + 1;
    if (*argv && strcmp(*argv, "--") == 0)
        argv++;
    if (!*argv) {
        fputs("space: space exec needs a command: space exec ID -- COMMAND…\n", stderr);
        return SP_EXIT_PLATFORM;
    }
    SP_CLEANUP(sp_interrupt_stop_p) struct sp_interrupt *interrupt = sp_interrupt_start();
    g_autoptr(GError) error = NULL;
    SP_CLEANUP(sp_client_free_p) struct sp_client *api = sp_client_open(o->client.state, &error);
    if (!api)
        return sp_output_error(error);
    g_autofree char *path = sp_client_resolve_sandbox(api, invocation->operands[0], &error);
    if (!path)
        return sp_output_error(error);
    struct sp_remote_command command = {.argv = argv,
                                        .env = o->env,
                                        .cwd = o->cwd,
                                        .user = o->user,
                                        .timeout = o->timeout,
                                        .interactive = o->interactive,
                                        .json = o->client.json};
    return sp_output_finish(sp_remote_run(api, path, &command, interrupt, NULL));
}
