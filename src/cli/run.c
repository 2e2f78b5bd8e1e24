/*
 * `space run`: a sandbox for one command. It is deleted on every way out; when we are killed by
 * SIGKILL, by the server, once it has been idle.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/remote.h"
#include "cli/sandbox_options.h"
#include "cli/verbs.h"

#define DELETE_WAIT_S 60
/* Begins when no command runs: enough for who reads the last output slowly (a pager). */
#define IDLE_TIMEOUT "10m"

struct run_options {
    struct sp_sandbox_options sandbox; /* first */
    char *cwd;
    char *timeout;
    bool interactive;
    bool keep;
};

const struct sp_option sp_run_options[] = {
    SP_OPTIONS_SANDBOX,
    {"cwd", 'w', SP_OPTION_STRING, offsetof(struct run_options, cwd), "DIR",
     "directory to run in (default: the template's)", 0},
    {"timeout", 0, SP_OPTION_STRING, offsetof(struct run_options, timeout), "DURATION",
     "end the command after this time (30s, 10m); exit code 124", 0},
    {"interactive", 'i', SP_OPTION_FLAG, offsetof(struct run_options, interactive), NULL,
     "feed our standard input to the command", 0},
    {"rm", 0, SP_OPTION_NEGATED, offsetof(struct run_options, keep), NULL,
     "delete the sandbox afterwards, the default; --rm=false keeps the sandbox", 0},
    SP_OPTIONS_CLIENT,
    {0},
};
const size_t sp_run_options_bytes = sizeof(struct run_options);

static void delete_after(struct sp_client *api, const char *path)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(json_t) answer = sp_sandbox_delete(api, path, DELETE_WAIT_S, &error);
    if (!answer && !g_error_matches(error, SP_ERROR, SP_ERROR_NOT_FOUND))
        fprintf(stderr, "space: %s could not be deleted: %s\n", path + strlen("/v1/sandboxes/"),
                error->message);
}

static json_t *create_body(struct sp_client *api, const struct run_options *o, GError **error)
{
    json_t *body = sp_sandbox_options_body(api, &o->sandbox, false, error);
    if (body && !o->keep) {
        json_object_set_new(body, "on_idle", json_string("delete"));
        json_object_set_new(body, "idle_timeout", json_string(IDLE_TIMEOUT));
    }
    return body;
}

static int run_in(struct sp_client *api, json_t *answer, const struct run_options *o,
                  const struct sp_remote_command *command, struct sp_interrupt *interrupt)
{
    g_autofree char *path = sp_sandbox_path(answer);
    if (!path) {
        fputs("space: the server named no sandbox\n", stderr);
        return SP_EXIT_PLATFORM;
    }
    if (command->json) {
        char *line = json_dumps(answer, JSON_COMPACT);
        puts(line);
        free(line);
    }
    bool suspended = false;
    int code = sp_remote_run(api, path, command, interrupt, &suspended);
    if (o->keep || suspended) /* whoever suspended it wants it again */
        fprintf(stderr, "space: the sandbox stays: %s\n", path + strlen("/v1/sandboxes/"));
    else
        delete_after(api, path);
    return code;
}

int sp_run_verb(const struct sp_invocation *invocation)
{
    const struct run_options *o = invocation->options;
    SP_CLEANUP(sp_interrupt_stop_p) struct sp_interrupt *interrupt = sp_interrupt_start();
    g_autoptr(GError) error = NULL;
    SP_CLEANUP(sp_client_free_p)
    struct sp_client *api = sp_client_open(o->sandbox.client.state, &error);
    if (!api)
        return sp_output_error(error);
    struct sp_remote_command command = {.argv = invocation->operands,
                                        .env = o->sandbox.env,
                                        .cwd = o->cwd,
                                        .user = o->sandbox.user,
                                        .timeout = o->timeout,
                                        .interactive = o->interactive,
                                        .json = o->sandbox.client.json};
    g_autoptr(json_t) body = create_body(api, o, &error);
    if (!body || !sp_remote_check(&command, &error))
        return sp_output_error(error);
    g_autoptr(json_t) answer = sp_sandbox_create(
        api, body, (struct sp_client_cancel){sp_interrupt_cancelled, interrupt}, &error);
    if (answer)
        return sp_output_finish(run_in(api, answer, o, &command, interrupt));
    int signal = sp_interrupt_signal(interrupt);
    return signal ? 128 + signal : sp_output_error(error);
}
