/*
 * One command in a sandbox, from the session to the exit code: what `space run` and `space exec`
 * share.
 */
#pragma once

#include <stdbool.h>

#include "cli/client.h"
#include "cli/interrupt.h"

/* Everything is borrowed. */
struct sp_remote_command {
    char *const *argv; /* strv, at least one */
    char *const *env;  /* strv "K=V"; "K" alone takes the value of our own environment */
    const char *cwd;   /* NULL: the sandbox's default; so below */
    const char *user;
    const char *timeout; /* "30s" */
    bool interactive;    /* feed our standard input */
    bool json;           /* print events as JSON lines */
};

/* Whether the command can be said in the API at all (UTF-8, variables that are set): to be asked
 * before something is made for it. */
bool sp_remote_check(const struct sp_remote_command *command, GError **error);
/* Makes a session in the sandbox ("/v1/sandboxes/<id>"), attaches, streams, and returns the exit
 * code for our own process; says on stderr what went wrong. The first SIGINT goes to the command; a
 * cancel returns 128 + signal at once and leaves the command to the caller, who deletes or signals.
 * *ret_suspended (may be NULL): the stream ended because the sandbox was suspended; the command
 * goes on when it is woken. */
int sp_remote_run(struct sp_client *api, const char *sandbox_path,
                  const struct sp_remote_command *command, struct sp_interrupt *interrupt,
                  bool *ret_suspended);

/* {"K":"V"} of options like --env; NULL with an error when one has no name or no value. */
json_t *sp_remote_env(char *const *env, GError **error);
