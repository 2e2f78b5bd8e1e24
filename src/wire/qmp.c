#include "wire/qmp.h"

#include <string.h>

#include "base/error.h"
#include "base/json.h"

size_t sp_qmp_line_length(const char *bytes, size_t len)
{
    const char *end = len > 0 ? memchr(bytes, '\n', len) : NULL;
    return end ? (size_t)(end - bytes) + 1 : 0;
}

static bool bad(GError **error, const char *what)
{
    g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "QMP: %s", what);
    return false;
}

/* "7.2.22 Debian 1:7.2+dfsg-7+deb12u18": what tells one QEMU build from another. */
static char *version_text(json_t *version)
{
    json_t *qemu = json_object_get(version, "qemu");
    json_t *major = json_object_get(qemu, "major");
    json_t *minor = json_object_get(qemu, "minor");
    json_t *micro = json_object_get(qemu, "micro");
    const char *package = json_string_value(json_object_get(version, "package"));
    if (!json_is_integer(major) || !json_is_integer(minor) || !json_is_integer(micro))
        return NULL;
    char *text = g_strdup_printf("%" JSON_INTEGER_FORMAT ".%" JSON_INTEGER_FORMAT
                                 ".%" JSON_INTEGER_FORMAT " %s",
                                 json_integer_value(major), json_integer_value(minor),
                                 json_integer_value(micro), package ? package : "");
    return g_strchomp(text);
}

static bool parse_greeting(json_t *greeting, struct sp_qmp_message *ret, GError **error)
{
    json_t *version = json_object_get(greeting, "version");
    char *name = json_is_object(version) ? version_text(version) : NULL;
    if (!name)
        return bad(error, "greeting without a version");
    *ret = (struct sp_qmp_message){
        .kind = SP_QMP_GREETING,
        .name = name,
        .data = json_incref(version),
    };
    return true;
}

static bool parse_event(json_t *root, json_t *event, struct sp_qmp_message *ret, GError **error)
{
    json_t *data = json_object_get(root, "data");
    if (!json_is_string(event) || (data && !json_is_object(data)))
        return bad(error, "malformed event");
    *ret = (struct sp_qmp_message){
        .kind = SP_QMP_EVENT,
        .name = g_strdup(json_string_value(event)),
        .data = data ? json_incref(data) : NULL,
    };
    return true;
}

static bool parse_failure(json_t *failure, struct sp_qmp_message *ret, GError **error)
{
    const char *name = json_string_value(json_object_get(failure, "class"));
    const char *text = json_string_value(json_object_get(failure, "desc"));
    if (!name || !text)
        return bad(error, "malformed error");
    *ret = (struct sp_qmp_message){
        .kind = SP_QMP_FAILURE,
        .name = g_strdup(name),
        .text = g_strdup(text),
    };
    return true;
}

static void take_id(json_t *root, struct sp_qmp_message *message)
{
    json_t *id = json_object_get(root, "id");
    message->has_id = json_is_integer(id);
    message->id = json_integer_value(id);
}

bool sp_qmp_parse(const char *line, size_t len, struct sp_qmp_message *ret, GError **error)
{
    if (len > SP_QMP_MAX_LINE)
        return bad(error, "line too long");
    g_autoptr(GError) cause = NULL;
    g_autoptr(json_t) root = sp_json_parse(line, len, &cause);
    if (!root) {
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "QMP: %s", cause->message);
        return false;
    }
    json_t *greeting = json_object_get(root, "QMP");
    json_t *result = json_object_get(root, "return");
    json_t *failure = json_object_get(root, "error");
    json_t *event = json_object_get(root, "event");
    if (!json_is_object(root) || !!greeting + !!result + !!failure + !!event != 1)
        return bad(error, "not a greeting, return, error or event");

    if (greeting)
        return parse_greeting(greeting, ret, error);
    if (event)
        return parse_event(root, event, ret, error);
    if (failure) {
        if (!parse_failure(failure, ret, error))
            return false;
    } else {
        *ret = (struct sp_qmp_message){.kind = SP_QMP_RETURN, .data = json_incref(result)};
    }
    take_id(root, ret);
    return true;
}

void sp_qmp_message_clear(struct sp_qmp_message *message)
{
    g_clear_pointer(&message->name, g_free);
    g_clear_pointer(&message->text, g_free);
    g_clear_pointer(&message->data, json_decref);
}

char *sp_qmp_command(const char *name, json_t *arguments, json_int_t id)
{
    g_autoptr(json_t) root =
        json_pack("{s:s, s:o*, s:I}", "execute", name, "arguments", arguments, "id", id);
    g_autofree char *text = sp_json_dump(root);
    return g_strconcat(text, "\n", NULL);
}
