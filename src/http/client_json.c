#include "http/client.h"

#include <string.h>

#include "base/error.h"
#include "base/json.h"

static enum sp_error_code code_of_status(int status)
{
    static const struct {
        int status;
        enum sp_error_code code;
    } rows[] = {
        {401, SP_ERROR_UNAUTHENTICATED},   {403, SP_ERROR_PERMISSION_DENIED},
        {404, SP_ERROR_NOT_FOUND},         {409, SP_ERROR_CONFLICT},
        {413, SP_ERROR_PAYLOAD_TOO_LARGE}, {429, SP_ERROR_RATE_LIMITED},
        {502, SP_ERROR_UNAVAILABLE},       {503, SP_ERROR_UNAVAILABLE},
        {504, SP_ERROR_UNAVAILABLE},
    };
    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
        if (rows[i].status == status)
            return rows[i].code;
    }
    return status >= 400 && status < 500 ? SP_ERROR_INVALID_REQUEST : SP_ERROR_INTERNAL;
}

void sp_http_answer_to_error(const struct sp_http_answer *answer, GError **error)
{
    gsize len = 0;
    const char *bytes = answer->body ? g_bytes_get_data(answer->body, &len) : "";
    g_autoptr(json_t) body = len ? sp_json_parse(bytes, len, NULL) : NULL;
    json_t *inner = json_object_get(body, "error");
    const char *name = json_string_value(json_object_get(inner, "code"));
    const char *message = json_string_value(json_object_get(inner, "message"));
    const char *field = json_string_value(json_object_get(inner, "field"));
    enum sp_error_code code = code_of_status(answer->status);
    if (name)
        sp_error_code_from_name(name, &code);
    if (field)
        sp_error_set_code_field(error, code, field, "%s", message ? message : "");
    else if (message)
        g_set_error_literal(error, SP_ERROR, (int)code, message);
    else
        g_set_error(error, SP_ERROR, (int)code, "the server answered %d", answer->status);
}

json_t *sp_http_call_json(struct sp_http_client *client, const char *method, const char *path,
                          json_t *request, int64_t timeout_ms, int *ret_status, GError **error)
{
    const struct sp_http_call call = {
        .method = method, .path = path, .json = request, .timeout_ms = timeout_ms};
    struct sp_http_answer answer = {0};
    if (!sp_http_call(client, &call, &answer, error))
        return NULL;
    const int status = answer.status;
    json_t *value = NULL;
    if (status < 200 || status >= 300) {
        sp_http_answer_to_error(&answer, error);
    } else {
        gsize len = 0;
        const char *bytes = g_bytes_get_data(answer.body, &len);
        value = len ? sp_json_parse(bytes, len, NULL) : json_object();
        if (!value)
            g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "the server's answer is no JSON");
    }
    sp_http_answer_clear(&answer);
    if (value && ret_status)
        *ret_status = status;
    return value;
}
