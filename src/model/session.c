#include "model/session.h"

#include <stddef.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "model/sandbox.h"
#include "wire/agent_msg.h"

#define MAX_ARGS 1024
#define EXEC_TIMEOUT_MS (10 * 60 * 1000)

const char *const sp_stdin_names[] = {"none", "open", NULL};
const char *const sp_overflow_names[] = {"block", "drop", NULL};
const char *const sp_signal_names[] = {
    "SIGHUP",  "SIGINT",  "SIGQUIT", "SIGABRT", "SIGKILL", "SIGUSR1", "SIGUSR2",  "SIGALRM",
    "SIGTERM", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGWINCH", NULL};

#define AT(member) offsetof(struct sp_session_request, member)

static const struct sp_json_field pty_table[] = {
    {"rows", SP_JSON_INT, offsetof(struct sp_pty, rows), 1, 10000, .required = true},
    {"cols", SP_JSON_INT, offsetof(struct sp_pty, cols), 1, 10000, .required = true},
    {NULL},
};
/* The first rows are common to both requests. */
#define COMMON_ROWS                                                                                \
    {"command", SP_JSON_STRING_LIST, AT(command), 1, MAX_ARGS, .required = true},                  \
        {"cwd", SP_JSON_STRING, AT(cwd), 1, 4095}, {"env", SP_JSON_STRING_MAP, AT(env), 0, 256},   \
        {"user", SP_JSON_STRING, AT(user), 1, 64},                                                 \
        {"timeout", SP_JSON_DURATION, AT(timeout_ms), 1, 30.0 * 24 * 3600 * 1000},                 \
    {                                                                                              \
        "grace", SP_JSON_DURATION, AT(grace_ms), 0, 5 * 60 * 1000                                  \
    }
static const struct sp_json_field session_table[] = {
    COMMON_ROWS,
    {"stdin", SP_JSON_ENUM, AT(stdin_mode), .choices = sp_stdin_names},
    {"overflow", SP_JSON_ENUM, AT(overflow), .choices = sp_overflow_names},
    {"pty", SP_JSON_OBJECT, AT(pty), .sub = pty_table, .present_offset = AT(pty_set)},
    {"detach", SP_JSON_BOOL, AT(detach)},
    {NULL},
};
static const struct sp_json_field exec_table[] = {COMMON_ROWS, {NULL}};

static size_t list_bytes(char *const *list)
{
    size_t total = 0;
    for (; list && *list; list++)
        total += strlen(*list) + SP_MSG_ITEM_OVERHEAD;
    return total;
}

/* Command and environment have to fit into one frame of the agent's protocol. */
static bool check_size(const struct sp_session_request *r, GError **error)
{
    size_t command = list_bytes(r->command);
    if (command + list_bytes(r->env) <= SP_MSG_LISTS_BYTES_MAX)
        return true;
    bool alone = command > SP_MSG_LISTS_BYTES_MAX;
    sp_error_set_field(error, alone ? "/command" : "/env",
                       "%s more than %u bytes (each item counts %u on top of its text)",
                       alone ? "command has" : "command and env together have",
                       SP_MSG_LISTS_BYTES_MAX, SP_MSG_ITEM_OVERHEAD);
    return false;
}

static bool check(const struct sp_session_request *r, GError **error)
{
    if (r->command[0][0] == '\0') {
        sp_error_set_field(error, "/command/0", "the program's name must not be empty");
        return false;
    }
    if (r->cwd && r->cwd[0] != '/') {
        sp_error_set_field(error, "/cwd", "cwd must be an absolute path");
        return false;
    }
    return sp_check_user(r->user, "/user", error) && sp_check_env(r->env, "/env", error) &&
           check_size(r, error);
}

static bool decode(json_t *body, const struct sp_json_field *table, int64_t timeout_ms,
                   struct sp_session_request *ret, GError **error)
{
    struct sp_session_request r = {.timeout_ms = timeout_ms, .grace_ms = 10 * 1000};
    if (!sp_json_decode(body, table, &r, error) || !check(&r, error)) {
        sp_session_request_clear(&r);
        return false;
    }
    *ret = r;
    return true;
}

bool sp_session_request_decode(json_t *body, struct sp_session_request *ret, GError **error)
{
    return decode(body, session_table, 0, ret, error);
}

bool sp_exec_request_decode(json_t *body, struct sp_session_request *ret, GError **error)
{
    return decode(body, exec_table, EXEC_TIMEOUT_MS, ret, error);
}

void sp_session_request_clear(struct sp_session_request *request)
{
    sp_json_clear(session_table, request);
}

json_t *sp_session_spec(const struct sp_session_request *r)
{
    json_t *spec = json_object();
    json_object_set_new(spec, "command", sp_json_from_strv(r->command));
    if (r->cwd)
        json_object_set_new(spec, "cwd", sp_json_text(r->cwd));
    json_object_set_new(spec, "env", sp_json_from_map(r->env));
    if (r->user)
        json_object_set_new(spec, "user", sp_json_text(r->user));
    json_object_set_new(spec, "timeout_ms", json_integer(r->timeout_ms));
    json_object_set_new(spec, "grace_ms", json_integer(r->grace_ms));
    json_object_set_new(spec, "stdin", json_string(sp_stdin_names[r->stdin_mode]));
    json_object_set_new(spec, "overflow", json_string(sp_overflow_names[r->overflow]));
    if (r->pty_set) {
        json_t *pty = json_object();
        json_object_set_new(pty, "rows", json_integer(r->pty.rows));
        json_object_set_new(pty, "cols", json_integer(r->pty.cols));
        json_object_set_new(spec, "pty", pty);
    }
    return spec;
}

bool sp_signal_request_decode(json_t *body, const char **ret_signal, GError **error)
{
    struct {
        int signal;
    } r = {0};
    static const struct sp_json_field table[] = {
        {"signal", SP_JSON_ENUM, 0, .choices = sp_signal_names, .required = true},
        {NULL},
    };
    if (!sp_json_decode(body, table, &r, error))
        return false;
    *ret_signal = sp_signal_names[r.signal];
    return true;
}
