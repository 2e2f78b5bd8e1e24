#include "node/attach_input.h"

#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/time.h"
#include "node/session_run.h"
#include "node/signal_name.h"

/* A command that does not read holds the request that long. */
#define STDIN_PATIENCE_MS (60 * 60 * 1000)
#define REQUEST_MS 15000

struct input {
    struct sp_node *node;
    struct sp_http_request *request;
    struct sp_session *session; /* a reference */
    struct sp_sandbox_use use;
    struct sp_link_input *handle; /* made at the first byte */
    uint64_t taken;               /* of this request's body */
};

static int64_t deadline_in(int64_t ms)
{
    return sp_time_monotonic_us() + ms * 1000;
}

static void input_free(void *data)
{
    struct input *input = data;
    sp_link_input_free(input->handle);
    sp_sandbox_use_clear(&input->use);
    sp_session_unref(input->session);
    g_free(input);
}

/* The session must have been started: by its first attach, or detached. */
static bool check_started(struct sp_node *node, struct sp_session *session, GError **error)
{
    struct sp_session_view view;
    sp_sessions_view(node->sessions, session, &view);
    if (view.state == SP_SESSION_RUNNING)
        return true;
    if (view.state == SP_SESSION_PENDING) {
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                    "the command has not been started: attach to its events first");
        return false;
    }
    g_autoptr(json_t) state = sp_sessions_to_json(node->sessions, session);
    json_t *code = json_object_get(json_object_get(state, "exit"), "exit_code");
    if (code)
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                    "process_exited: the command has ended with exit code %" JSON_INTEGER_FORMAT,
                    json_integer_value(code));
    else
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                    "process_exited: the command has ended");
    return false;
}

bool sp_attach_input_authorize(struct sp_http_request *request, void *user, GError **error)
{
    struct sp_node *node = user;
    struct sp_session *session = sp_sessions_authorize(node->sessions, sp_http_param(request, 0),
                                                       sp_http_bearer(request), error);
    if (!session)
        return false;
    struct input *input = g_new0(struct input, 1);
    if (!check_started(node, session, error) ||
        !sp_table_use(node->table, session->sandbox_id, &input->use, error)) {
        g_free(input);
        sp_session_unref(session);
        return false;
    }
    input->node = node;
    input->request = request;
    input->session = session;
    sp_http_set_data(request, input, input_free);
    return true;
}

static bool gave_up(void *user)
{
    struct input *input = user;
    return sp_node_stopping(input->node) || sp_http_client_gone(input->request);
}

bool sp_attach_stdin_body(struct sp_http_request *request, const char *bytes, size_t len,
                          GError **error)
{
    struct input *input = sp_http_data(request);
    size_t taken;
    if (!input->handle)
        input->handle = sp_link_input_open(input->use.link, input->session->id);
    bool fine = sp_link_input_write(input->handle, bytes, len, deadline_in(STDIN_PATIENCE_MS),
                                    gave_up, input, &taken, error);
    input->taken += taken;
    return fine;
}

static void respond_input(struct sp_http_request *request, struct input *input)
{
    struct sp_link_input_state state = {0};
    if (input->handle)
        sp_link_input_state(input->handle, &state);
    sp_http_respond_json(request, 200,
                         json_pack("{s:I,s:I,s:b}", "accepted", (json_int_t)input->taken, "total",
                                   (json_int_t)state.accepted, "closed", state.closed));
}

void sp_attach_stdin(struct sp_http_request *request, void *user)
{
    respond_input(request, sp_http_data(request));
}

void sp_attach_close_stdin(struct sp_http_request *request, void *user)
{
    struct input *input = sp_http_data(request);
    g_autoptr(GError) error = NULL;
    input->handle = sp_link_input_open(input->use.link, input->session->id);
    if (sp_link_input_close(input->handle, deadline_in(REQUEST_MS), &error))
        respond_input(request, input);
    else
        sp_http_respond_error(request, error);
}

void sp_attach_resize(struct sp_http_request *request, void *user)
{
    static const struct sp_json_field table[] = {
        {"rows", SP_JSON_INT, 0, 1, 10000, .required = true},
        {"cols", SP_JSON_INT, sizeof(int64_t), 1, 10000, .required = true},
        {NULL},
    };
    struct input *input = sp_http_data(request);
    int64_t size[2];
    g_autoptr(GError) error = NULL;
    g_autoptr(json_t) body = sp_http_body_json(request, &error);
    if (body && sp_json_decode(body, table, size, &error) &&
        sp_link_resize(input->use.link, input->session->id, (uint16_t)size[0], (uint16_t)size[1],
                       deadline_in(REQUEST_MS), &error))
        sp_http_respond_json(request, 200, json_object());
    else
        sp_http_respond_error(request, error);
}

void sp_attach_signal(struct sp_http_request *request, void *user)
{
    struct input *input = sp_http_data(request);
    struct sp_msg_signal signal = {.session_id = sp_span_of(input->session->id),
                                   .scope = SP_SIGNAL_GROUP};
    g_autoptr(GError) error = NULL;
    g_autoptr(json_t) body = sp_http_body_json(request, &error);
    if (body && sp_signal_from_body(body, &signal.signal, &error) &&
        sp_link_signal(input->use.link, &signal, deadline_in(REQUEST_MS), &error))
        sp_http_respond_json(request, 200, json_object());
    else
        sp_http_respond_error(request, error);
}
