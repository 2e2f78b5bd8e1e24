/*
 * `space doctor`: what works on this machine and why not. Looks for itself, and asks the server for
 * its nodes' tiers when one answers. Then compares what the installation has on this host with what
 * its records, its worker and its server know; --repair mends what is inconsistent. Exit code 0:
 * all is well; 1: something that is needed is missing, or is left inconsistent.
 */
#include <stdio.h>

#include "base/error.h"
#include "base/time.h"
#include "cli/client.h"
#include "cli/client_options.h"
#include "cli/doctor_checks.h"
#include "cli/doctor_state.h"
#include "cli/output.h"
#include "cli/tiers.h"
#include "cli/verbs.h"
#include "http/client.h"

#define EXIT_MISSING 1
#define ASK_TIMEOUT_MS 3000
#define TRYING_TIMEOUT_MS 30000
#define TRYING_POLL_US 300000

struct doctor_options {
    struct sp_client_options client; /* first */
    bool repair;
};

const struct sp_option sp_doctor_options[] = {
    {"repair", 0, SP_OPTION_FLAG, offsetof(struct doctor_options, repair), NULL,
     "mend what is inconsistent on this host, where there is proof", 0},
    SP_OPTIONS_CLIENT,
    {0},
};
const size_t sp_doctor_options_bytes = sizeof(struct doctor_options);

/* A worker that has just started is still trying its tiers out: waits for it. */
static json_t *ask_nodes(struct sp_http_client *client, GError **error)
{
    int64_t deadline_ms = sp_time_monotonic_ms() + TRYING_TIMEOUT_MS;
    for (;;) {
        json_t *nodes =
            sp_http_call_json(client, "GET", "/v1/nodes", NULL, ASK_TIMEOUT_MS, NULL, error);
        if (!nodes || !sp_tiers_still_tried(nodes) || sp_time_monotonic_ms() > deadline_ms)
            return nodes;
        json_decref(nodes);
        g_usleep(TRYING_POLL_US);
    }
}

/* {"url","answers","nodes":[…]}, or {"answers":false,"detail"} when there is none to ask. */
static json_t *ask_server(const char *state, bool *ret_tiers_ok)
{
    struct sp_client_conf conf = {0};
    g_autoptr(GError) error = NULL;
    if (!sp_client_conf_resolve(state, &conf, &error))
        return json_pack("{s:b, s:o}", "answers", 0, "detail", sp_json_text(error->message));
    struct sp_http_client *client = sp_http_client_new(conf.url, conf.key);
    g_autoptr(json_t) nodes = ask_nodes(client, &error);
    *ret_tiers_ok = !nodes || sp_tiers_all_work(nodes);
    json_t *items = json_object_get(nodes, "items");
    json_t *server = items
                         ? json_pack("{s:o, s:b, s:O}", "url", sp_json_text(conf.url), "answers", 1,
                                     "nodes", items)
                         : json_pack("{s:o, s:b, s:o}", "url", sp_json_text(conf.url), "answers", 0,
                                     "detail", sp_json_text(error ? error->message : "no list"));
    sp_http_client_free(client);
    sp_client_conf_clear(&conf);
    return server;
}

static void print_checks(json_t *checks)
{
    size_t i;
    json_t *check;
    json_array_foreach(checks, i, check)
    {
        g_autofree char *name = sp_output_text(check, "name", NULL);
        g_autofree char *needed_for = sp_output_text(check, "needed_for", NULL);
        g_autofree char *detail = sp_output_text(check, "detail", NULL);
        bool ok = json_is_true(json_object_get(check, "ok"));
        printf("%-8s %-16s %s", ok ? "ok" : "MISSING", name, detail);
        if (!ok)
            printf(" (needed for %s)", needed_for);
        putchar('\n');
    }
}

static void print_tier(json_t *tier, const char *node)
{
    g_autofree char *name = sp_output_text(tier, "tier", NULL);
    g_autofree char *detail = sp_output_text(tier, "detail", NULL);
    bool ok = json_is_true(json_object_get(tier, "available"));
    printf("%-8s tier %-11s %s (node %s)\n", ok ? "ok" : "MISSING", name, detail, node);
    json_t *memory = json_object_get(tier, "save_memory");
    if (!ok || !json_is_boolean(memory))
        return;
    /* better to have, as --no-memory works without it */
    const char *why = json_string_value(json_object_get(tier, "save_memory_detail"));
    bool saves = json_is_true(memory);
    printf("%-8s suspend %-8s %s (node %s)\n", saves ? "ok" : "MISSING", name,
           saves ? "keeps memory"
           : why ? why
                 : "cannot keep memory",
           node);
}

static void print_server(json_t *server)
{
    g_autofree char *url = sp_output_text(server, "url", NULL);
    if (!json_is_true(json_object_get(server, "answers"))) {
        g_autofree char *detail = sp_output_text(server, "detail", NULL);
        printf("\nThe server was not asked: %s\n", detail);
        return;
    }
    printf("\nThe server at %s says:\n", url);
    size_t i, j;
    json_t *node, *tier;
    json_array_foreach(json_object_get(server, "nodes"), i, node)
    {
        g_autofree char *name = sp_output_text(node, "name", NULL);
        json_array_foreach(json_object_get(node, "tiers"), j, tier)
        {
            print_tier(tier, name);
        }
    }
}

int sp_doctor_verb(const struct sp_invocation *invocation)
{
    const struct doctor_options *o = invocation->options;
    g_autofree char *state =
        g_canonicalize_filename(o->client.state ? o->client.state : SP_STATE_DIR_DEFAULT, NULL);
    struct sp_check_context context = {.state_dir = state};
    g_autoptr(json_t) checks = json_array();
    bool ok = true, tiers_ok = true, consistent = true;
    for (const struct sp_check *check = sp_checks; check->name; check++) {
        json_t *result = sp_check_run(check, &context);
        ok = ok && (json_is_true(json_object_get(result, "ok")) || check->need == SP_NEED_BETTER);
        json_array_append_new(checks, result);
    }
    g_autoptr(json_t) server = ask_server(o->client.state, &tiers_ok);
    g_autoptr(json_t) host = sp_doctor_state(state, o->repair, &consistent);
    ok = ok && tiers_ok && consistent;
    if (o->client.json) {
        g_autoptr(json_t) all =
            json_pack("{s:b, s:s, s:O, s:O, s:O}", "ok", ok, "version", SPACE_VERSION, "checks",
                      checks, "server", server, "state", host);
        sp_output_json(all);
    } else {
        print_checks(checks);
        print_server(server);
        sp_doctor_state_print(host);
        puts(ok ? "\nAll is well." : "\nSomething is missing or inconsistent.");
    }
    return sp_output_finish(ok ? 0 : EXIT_MISSING);
}
