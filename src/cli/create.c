/* `space create`: a sandbox that stays; prints its id when it runs. */
#include <stdio.h>

#include "base/error.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/sandbox_options.h"
#include "cli/verbs.h"

struct create_options {
    struct sp_sandbox_options sandbox; /* first */
    char *idle_timeout;
    char *on_idle;
    char *max_lifetime;
};

#define OFFSET(member) offsetof(struct create_options, member)
const struct sp_option sp_create_options[] = {
    SP_OPTIONS_SANDBOX,
    {"idle-timeout", 0, SP_OPTION_STRING, OFFSET(idle_timeout), "DURATION",
     "time without use until --on-idle happens (default 6h)", 0},
    {"on-idle", 0, SP_OPTION_STRING, OFFSET(on_idle), "ACTION", "suspend, pause, delete or none",
     0},
    {"max-lifetime", 0, SP_OPTION_STRING, OFFSET(max_lifetime), "DURATION",
     "delete it after this time in any case", 0},
    SP_OPTIONS_CLIENT,
    {0},
};
const size_t sp_create_options_bytes = sizeof(struct create_options);

static void set_text(json_t *body, const char *name, const char *value)
{
    if (value)
        json_object_set_new(body, name, sp_json_text(value));
}

int sp_create_verb(const struct sp_invocation *invocation)
{
    const struct create_options *o = invocation->options;
    SP_CLEANUP(sp_interrupt_stop_p) struct sp_interrupt *interrupt = sp_interrupt_start();
    g_autoptr(GError) error = NULL;
    SP_CLEANUP(sp_client_free_p)
    struct sp_client *api = sp_client_open(o->sandbox.client.state, &error);
    if (!api)
        return sp_output_error(error);
    g_autoptr(json_t) body = sp_sandbox_options_body(api, &o->sandbox, true, &error);
    if (!body)
        return sp_output_error(error);
    set_text(body, "idle_timeout", o->idle_timeout);
    set_text(body, "on_idle", o->on_idle);
    set_text(body, "max_lifetime", o->max_lifetime);
    g_autoptr(json_t) answer = sp_sandbox_create(
        api, body, (struct sp_client_cancel){sp_interrupt_cancelled, interrupt}, &error);
    if (!answer) {
        int signal = sp_interrupt_signal(interrupt);
        return signal ? 128 + signal : sp_output_error(error);
    }
    if (o->sandbox.client.json) {
        sp_output_json(answer);
    } else {
        g_autofree char *id = sp_output_text(json_object_get(answer, "sandbox"), "id", NULL);
        puts(id);
    }
    return sp_output_finish(0);
}
