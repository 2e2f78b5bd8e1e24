#include "node/session.h"

#include <stddef.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "model/session.h"
#include "node/lenient.h"

#define MAX_TOKENS 256u

static const struct sp_json_field pty_table[] = {
    {"rows", SP_JSON_INT, offsetof(struct sp_session_spec, rows), 1, 65535, .required = true},
    {"cols", SP_JSON_INT, offsetof(struct sp_session_spec, cols), 1, 65535, .required = true},
    {NULL},
};

#define AT(member) offsetof(struct sp_session_spec, member)

static const struct sp_json_field spec_table[] = {
    {"command", SP_JSON_STRING_LIST, AT(command), 1, 8192, .required = true},
    {"cwd", SP_JSON_STRING, AT(cwd), 0, 4095},
    {"env", SP_JSON_STRING_MAP, AT(env), 0, 8192},
    {"user", SP_JSON_STRING, AT(user), 0, 64},
    {"timeout_ms", SP_JSON_INT, AT(timeout_ms), 0, 1e15},
    {"grace_ms", SP_JSON_INT, AT(grace_ms), 0, 1e15},
    {"stdin", SP_JSON_ENUM, AT(stdin_mode), .choices = sp_stdin_names},
    {"overflow", SP_JSON_ENUM, AT(overflow), .choices = sp_overflow_names},
    {NULL},
};

static bool decode_spec(json_t *body, struct sp_session_spec *spec, GError **error)
{
    if (!sp_node_decode(body, spec_table, spec, error))
        return false;
    json_t *pty = json_object_get(body, "pty");
    return !pty || json_is_null(pty) || sp_node_decode(pty, pty_table, spec, error);
}

struct sp_session *sp_session_ref(struct sp_session *session)
{
    g_atomic_int_inc(&session->refs);
    return session;
}

void sp_session_unref(struct sp_session *session)
{
    if (!session || !g_atomic_int_dec_and_test(&session->refs))
        return;
    sp_json_clear(spec_table, &session->spec);
    g_array_unref(session->tokens);
    g_free(session->code);
    g_free(session->message);
    g_free(session);
}

static bool copy_id(json_t *body, const char *name, const char *prefix, char ret[SP_ID_MAX])
{
    const char *value = json_string_value(json_object_get(body, name));
    if (!value || strlen(value) >= SP_ID_MAX || (prefix && !sp_id_valid(value, prefix)))
        return false;
    g_strlcpy(ret, value, SP_ID_MAX);
    return true;
}

bool sp_session_fill(struct sp_session *session, json_t *body, GError **error)
{
    if (!copy_id(body, "process_id", NULL, session->process_id) ||
        (!session->sandbox_id[0] && !copy_id(body, "sandbox_id", "sbx", session->sandbox_id))) {
        g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "a session without ids");
        return false;
    }
    if (session->spec.command)
        return true;
    json_t *spec_json = json_object_get(body, "spec");
    struct sp_session_spec spec = {0};
    if (!decode_spec(spec_json ? spec_json : body, &spec, error)) {
        sp_json_clear(spec_table, &spec);
        return false;
    }
    session->spec = spec;
    return true;
}

void sp_session_fill_tokens(struct sp_session *session, json_t *body)
{
    g_array_set_size(session->tokens, 0);
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(body, "tokens"), i, item)
    {
        const char *hash = json_string_value(json_object_get(item, "sha256"));
        struct sp_session_token token = {
            .expires_at_ms = json_integer_value(json_object_get(item, "expires_at_ms"))};
        if (!hash || strlen(hash) != SP_HASH_HEX - 1 || i >= MAX_TOKENS)
            continue;
        memcpy(token.hash, hash, SP_HASH_HEX);
        g_array_append_val(session->tokens, token);
    }
}

bool sp_session_token_valid(const struct sp_session *session, const char *hash, int64_t now_ms)
{
    bool valid = false;
    for (guint i = 0; i < session->tokens->len; i++) {
        const struct sp_session_token *token =
            &g_array_index(session->tokens, struct sp_session_token, i);
        bool same = sp_hash_equal(token->hash, hash);
        valid |= same && token->expires_at_ms > now_ms;
    }
    return valid;
}

json_t *sp_session_exit_json(const struct sp_msg_exit *e)
{
    return json_pack("{s:i,s:i,s:b,s:b,s:b,s:b,s:I,s:I,s:I}", "exit_code", e->exit_code, "signal",
                     e->signal, "core_dumped", e->flags & SP_EXIT_CORE_DUMPED, "oom",
                     e->flags & SP_EXIT_OOM, "timed_out", e->flags & SP_EXIT_TIMED_OUT,
                     "pipe_held_open", e->flags & SP_EXIT_PIPE_HELD_OPEN, "duration_ms",
                     (json_int_t)(e->duration_us / 1000), "cpu_ms", (json_int_t)(e->cpu_us / 1000),
                     "peak_memory_bytes",
                     (json_int_t)MIN(e->peak_memory_bytes, (uint64_t)INT64_MAX));
}

json_t *sp_session_report(const struct sp_session *session)
{
    json_t *report = json_object();
    json_object_set_new(report, "id", json_string(session->id));
    json_object_set_new(report, "state", json_string(sp_session_state_names[session->state]));
    if (session->started_at_ms)
        json_object_set_new(report, "started_at_ms", json_integer(session->started_at_ms));
    if (session->ended_at_ms)
        json_object_set_new(report, "ended_at_ms", json_integer(session->ended_at_ms));
    if (session->state == SP_SESSION_EXITED && session->has_exit)
        json_object_set_new(report, "exit", sp_session_exit_json(&session->exit));
    if (session->code) {
        json_t *error = json_object();
        json_object_set_new(error, "code", sp_json_text(session->code));
        json_object_set_new(error, "message", sp_json_text(session->message));
        json_object_set_new(report, "error", error);
    }
    return report;
}
