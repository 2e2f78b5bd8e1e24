/* `space pause`, `space suspend`, `space wake`: each waits until it is so, and prints the ids. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/change.h"
#include "cli/client_options.h"
#include "cli/output.h"
#include "cli/verbs.h"

struct suspend_options {
    struct sp_client_options client; /* first */
    bool no_memory;
};

const struct sp_option sp_pause_options[] = {SP_OPTIONS_CLIENT, {0}};
const size_t sp_pause_options_bytes = sizeof(struct sp_client_options);
const struct sp_option sp_wake_options[] = {SP_OPTIONS_CLIENT, {0}};
const size_t sp_wake_options_bytes = sizeof(struct sp_client_options);
const struct sp_option sp_suspend_options[] = {
    {"no-memory", 0, SP_OPTION_FLAG, offsetof(struct suspend_options, no_memory), NULL,
     "keep the disk only; its processes end", 0},
    SP_OPTIONS_CLIENT,
    {0},
};
const size_t sp_suspend_options_bytes = sizeof(struct suspend_options);

static bool change_one(struct sp_client *api, const char *id, const char *change, json_t *body,
                       bool json)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *sandbox = sp_client_resolve_sandbox(api, id, &error);
    g_autofree char *path = sandbox ? g_strdup_printf("%s/%s", sandbox, change) : NULL;
    g_autoptr(json_t) answer = path ? sp_change_call(api, path, body, "sandbox", &error) : NULL;
    if (!answer) {
        sp_output_error(error);
        return false;
    }
    if (json)
        sp_output_json(answer);
    else
        puts(sandbox + strlen("/v1/sandboxes/"));
    return true;
}

/* Every id is tried, whatever became of those before. */
static int change_all(const struct sp_invocation *invocation, const char *change, json_t *body)
{
    const struct sp_client_options *o = invocation->options;
    g_autoptr(GError) error = NULL;
    SP_CLEANUP(sp_client_free_p) struct sp_client *api = sp_client_open(o->state, &error);
    if (!api)
        return sp_output_error(error);
    bool all = true;
    for (char **id = invocation->operands; *id; id++)
        all = change_one(api, *id, change, body, o->json) && all;
    return sp_output_finish(all ? 0 : SP_EXIT_PLATFORM);
}

int sp_pause_verb(const struct sp_invocation *invocation)
{
    return change_all(invocation, "pause", NULL);
}

int sp_wake_verb(const struct sp_invocation *invocation)
{
    return change_all(invocation, "wake", NULL);
}

int sp_suspend_verb(const struct sp_invocation *invocation)
{
    const struct suspend_options *o = invocation->options;
    g_autoptr(json_t) body = o->no_memory ? json_pack("{s:b}", "memory", 0) : NULL;
    return change_all(invocation, "suspend", body);
}
