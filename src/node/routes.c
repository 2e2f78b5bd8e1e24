#include "node/routes.h"

#include "node/attach.h"
#include "node/attach_input.h"
#include "node/exec.h"
#include "node/node_api.h"

#define SMALL_BODY 4096u
#define SPEC_BODY (1u << 20)

static void health(struct sp_http_request *request, void *user)
{
    sp_http_respond_json(request, 200, json_pack("{s:s}", "status", "ok"));
}

const struct sp_http_route sp_node_routes[] = {
    {"GET", "/healthz", health, NULL, NULL, 0},

    {"GET", "/v1/attach/{}/events", sp_attach_events, sp_attach_authorize, NULL, 0},
    {"POST", "/v1/attach/{}/stdin", sp_attach_stdin, sp_attach_input_authorize,
     sp_attach_stdin_body, 0},
    {"POST", "/v1/attach/{}/close-stdin", sp_attach_close_stdin, sp_attach_input_authorize, NULL,
     SMALL_BODY},
    {"POST", "/v1/attach/{}/resize", sp_attach_resize, sp_attach_input_authorize, NULL, SMALL_BODY},
    {"POST", "/v1/attach/{}/signal", sp_attach_signal, sp_attach_input_authorize, NULL, SMALL_BODY},

    {"POST", "/node/v1/sandboxes/{}/exec", sp_exec, sp_node_authorize, NULL, SPEC_BODY},
    {"GET", "/node/v1/sandboxes/{}/processes", sp_node_processes, sp_node_authorize, NULL, 0},
    {"POST", "/node/v1/sandboxes/{}/processes/{}/signal", sp_node_process_signal, sp_node_authorize,
     NULL, SMALL_BODY},
    {"POST", "/node/v1/sessions/{}/start", sp_node_session_start, sp_node_authorize, NULL,
     SMALL_BODY},
    {"GET", "/node/v1/inventory", sp_node_inventory, sp_node_authorize, NULL, 0},
    {"GET", "/node/v1/sessions/{}", sp_node_session_get, sp_node_authorize, NULL, 0},
    {NULL, NULL, NULL, NULL, NULL, 0},
};
