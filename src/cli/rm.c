/* `space rm`: deletes sandboxes and waits until nothing is left of them. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/client.h"
#include "cli/output.h"
#include "cli/sandbox_options.h"
#include "cli/verbs.h"

#define WAIT_S 120

struct rm_options {
    struct sp_client_options client; /* first */
    bool force;
};

const struct sp_option sp_rm_options[] = {
    {"force", 'f', SP_OPTION_FLAG, offsetof(struct rm_options, force), NULL,
     "a sandbox that does not exist is no error", 0},
    SP_OPTIONS_CLIENT,
    {0},
};
const size_t sp_rm_options_bytes = sizeof(struct rm_options);

static bool remove_one(struct sp_client *api, const char *id, const struct rm_options *o)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *path = sp_client_resolve_sandbox(api, id, &error);
    g_autoptr(json_t) answer = path ? sp_sandbox_delete(api, path, WAIT_S, &error) : NULL;
    if (!answer) {
        if (o->force && g_error_matches(error, SP_ERROR, SP_ERROR_NOT_FOUND))
            return true;
        sp_output_error(error);
        return false;
    }
    if (o->client.json)
        sp_output_json(answer);
    else
        puts(path + strlen("/v1/sandboxes/"));
    return true;
}

int sp_rm_verb(const struct sp_invocation *invocation)
{
    const struct rm_options *o = invocation->options;
    g_autoptr(GError) error = NULL;
    SP_CLEANUP(sp_client_free_p) struct sp_client *api = sp_client_open(o->client.state, &error);
    if (!api)
        return sp_output_error(error);
    bool all = true;
    for (char **id = invocation->operands; *id; id++)
        all = remove_one(api, *id, o) && all;
    return sp_output_finish(all ? 0 : SP_EXIT_PLATFORM);
}
