#include "cli/client.h"

#include <string.h>

#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"
#include "http/client.h"

#define CALL_TIMEOUT_MS 30000
#define WAIT_MARGIN_MS 15000
#define MAX_TRIES 6
#define FIRST_PAUSE_US 100000
#define POLL_US 200000
#define MAX_LIST_ITEMS 100000

struct sp_client {
    struct sp_http_client *http;
    struct sp_client_conf conf;
};

struct sp_client *sp_client_open_with(const struct sp_client_conf *conf)
{
    struct sp_client *api = g_new0(struct sp_client, 1);
    api->conf = (struct sp_client_conf){.url = g_strdup(conf->url),
                                        .key = g_strdup(conf->key),
                                        .data_url = g_strdup(conf->data_url)};
    api->http = sp_http_client_new(conf->url, conf->key);
    return api;
}

struct sp_client *sp_client_open(const char *state_dir, GError **error)
{
    struct sp_client_conf conf = {0};
    if (!sp_client_conf_resolve(state_dir, &conf, error))
        return NULL;
    struct sp_client *api = sp_client_open_with(&conf);
    sp_client_conf_clear(&conf);
    return api;
}

void sp_client_free(struct sp_client *api)
{
    if (!api)
        return;
    sp_http_client_free(api->http);
    sp_client_conf_clear(&api->conf);
    g_free(api);
}

const char *sp_client_url(const struct sp_client *api)
{
    return api->conf.url;
}

const char *sp_client_data_url(const struct sp_client *api)
{
    return api->conf.data_url;
}

static bool is_cancelled(const struct sp_client_cancel *cancel)
{
    return cancel->fn && cancel->fn(cancel->user);
}

/* Sleeps in short pieces, so that a cancel is noticed; false when it was. */
static bool pause_us(int64_t us, const struct sp_client_cancel *cancel)
{
    int64_t end_us = sp_time_monotonic_us() + us;
    for (;;) {
        if (is_cancelled(cancel))
            return false;
        int64_t left_us = end_us - sp_time_monotonic_us();
        if (left_us <= 0)
            return true;
        g_usleep((gulong)MIN(left_us, 50000));
    }
}

/* One HTTP exchange, repeated while no answer comes. */
static bool call_until_answered(struct sp_client *api, const struct sp_http_call *call,
                                const struct sp_client_cancel *cancel, struct sp_http_answer *ret,
                                GError **error)
{
    int64_t wait_us = FIRST_PAUSE_US;
    for (int try = 1;; try++) {
        g_autoptr(GError) cause = NULL;
        if (sp_http_call(api->http, call, ret, &cause))
            return true;
        if (try == MAX_TRIES || is_cancelled(cancel) || !pause_us(wait_us, cancel)) {
            if (is_cancelled(cancel))
                g_set_error_literal(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "interrupted");
            else
                g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "no answer from %s: %s",
                            api->conf.url, cause->message);
            return false;
        }
        wait_us *= 2;
    }
}

json_t *sp_client_call(struct sp_client *api, const struct sp_client_request *request,
                       int *ret_status, GError **error)
{
    bool mutation = strcmp(request->method, "GET") != 0;
    char fresh_key[SP_ID_MAX];
    sp_id_new("cli", fresh_key);
    g_autofree char *key_line = g_strconcat(
        "Idempotency-Key: ", request->idempotency_key ? request->idempotency_key : fresh_key, NULL);
    g_autofree char *prefer_line = g_strdup_printf("Prefer: wait=%u", request->wait_s);
    const char *headers[3] = {NULL};
    unsigned n = 0;
    if (mutation)
        headers[n++] = key_line;
    if (request->wait_s)
        headers[n++] = prefer_line;

    struct sp_http_call call = {.method = request->method,
                                .path = request->path,
                                .json = request->json,
                                .headers = headers,
                                .timeout_ms = request->wait_s * INT64_C(1000) +
                                              (request->wait_s ? WAIT_MARGIN_MS : CALL_TIMEOUT_MS),
                                .cancelled = request->cancel.fn,
                                .user = request->cancel.user};
    struct sp_http_answer answer = {0};
    if (!call_until_answered(api, &call, &request->cancel, &answer, error))
        return NULL;
    json_t *value = NULL;
    if (answer.status < 200 || answer.status > 299) {
        sp_http_answer_to_error(&answer, error);
    } else {
        gsize len = 0;
        const char *text = answer.body ? g_bytes_get_data(answer.body, &len) : NULL;
        value = len ? sp_json_parse(text, len, error) : json_object();
        if (!value)
            g_prefix_error(error, "the answer to %s %s: ", request->method, request->path);
        if (ret_status)
            *ret_status = answer.status;
    }
    sp_http_answer_clear(&answer);
    return value;
}

json_t *sp_client_get(struct sp_client *api, const char *path, GError **error)
{
    return sp_client_call(api, &(struct sp_client_request){.method = "GET", .path = path}, NULL,
                          error);
}

GBytes *sp_client_get_bytes(struct sp_client *api, const char *path, GError **error)
{
    struct sp_http_call call = {.method = "GET", .path = path, .timeout_ms = CALL_TIMEOUT_MS};
    struct sp_http_answer answer = {0};
    if (!call_until_answered(api, &call, &(struct sp_client_cancel){0}, &answer, error))
        return NULL;
    if (answer.status >= 200 && answer.status <= 299)
        return answer.body ? answer.body : g_bytes_new(NULL, 0);
    sp_http_answer_to_error(&answer, error);
    sp_http_answer_clear(&answer);
    return NULL;
}

json_t *sp_client_list(struct sp_client *api, const char *path, GError **error)
{
    g_autoptr(json_t) all = json_array();
    g_autofree char *cursor = NULL;
    do {
        g_autoptr(GString) page_path = g_string_new(path);
        g_string_append_printf(page_path, "%climit=100", strchr(path, '?') ? '&' : '?');
        if (cursor) {
            g_string_append(page_path, "&cursor=");
            g_string_append_uri_escaped(page_path, cursor, NULL, FALSE);
        }
        g_autoptr(json_t) page = sp_client_get(api, page_path->str, error);
        if (!page)
            return NULL;
        json_t *items = json_object_get(page, "items");
        if (!json_is_array(items) || json_array_size(all) > MAX_LIST_ITEMS) {
            g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "GET %s answered no list", path);
            return NULL;
        }
        json_array_extend(all, items);
        g_free(cursor);
        cursor = json_array_size(items)
                     ? g_strdup(json_string_value(json_object_get(page, "next_cursor")))
                     : NULL;
    } while (cursor);
    return json_pack("{s:O, s:n}", "items", all, "next_cursor");
}

static void set_operation_error(const json_t *operation, GError **error)
{
    json_t *cause = json_object_get(operation, "error");
    const char *code_name = json_string_value(json_object_get(cause, "code"));
    const char *message = json_string_value(json_object_get(cause, "message"));
    const char *kind = json_string_value(json_object_get(operation, "kind"));
    enum sp_error_code code = SP_ERROR_INTERNAL;
    if (code_name)
        sp_error_code_from_name(code_name, &code);
    g_set_error(error, SP_ERROR, (int)code, "%s failed: %s", kind ? kind : "the operation",
                message ? message : "the server gave no reason");
}

json_t *sp_client_wait_operation(struct sp_client *api, json_t *operation, int64_t timeout_ms,
                                 struct sp_client_cancel cancel, GError **error)
{
    const char *id = json_string_value(json_object_get(operation, "id"));
    if (!id || !sp_id_valid(id, "op")) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_INTERNAL, "the server named no operation");
        return NULL;
    }
    g_autofree char *path = g_strconcat("/v1/operations/", id, NULL);
    int64_t deadline_ms = sp_time_monotonic_ms() + timeout_ms;
    g_autoptr(json_t) now = json_incref(operation);
    for (;;) {
        const char *state = json_string_value(json_object_get(now, "state"));
        if (g_strcmp0(state, "succeeded") == 0)
            return g_steal_pointer(&now);
        if (g_strcmp0(state, "failed") == 0) {
            set_operation_error(now, error);
            return NULL;
        }
        if (sp_time_monotonic_ms() >= deadline_ms || !pause_us(POLL_US, &cancel)) {
            g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "operation %s is still %s", id,
                        state ? state : "unknown");
            return NULL;
        }
        json_t *next = sp_client_get(api, path, error);
        if (!next)
            return NULL;
        json_decref(now);
        now = next;
    }
}

char *sp_client_resolve_sandbox(struct sp_client *api, const char *id_or_name, GError **error)
{
    if (sp_id_valid(id_or_name, "sbx"))
        return g_strconcat("/v1/sandboxes/", id_or_name, NULL);
    g_autoptr(json_t) list = sp_client_list(api, "/v1/sandboxes", error);
    if (!list)
        return NULL;
    g_autofree char *found = NULL;
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(list, "items"), i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        const char *id = json_string_value(json_object_get(item, "id"));
        const char *state = json_string_value(json_object_get(item, "state"));
        if (g_strcmp0(name, id_or_name) != 0 || !id || !sp_id_valid(id, "sbx") ||
            g_strcmp0(state, "deleted") == 0 || g_strcmp0(state, "deleting") == 0)
            continue;
        if (found) {
            g_set_error(error, SP_ERROR, SP_ERROR_CONFLICT,
                        "more than one sandbox is named \"%s\": use the id", id_or_name);
            return NULL;
        }
        found = g_strconcat("/v1/sandboxes/", id, NULL);
    }
    if (!found)
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no sandbox \"%s\"", id_or_name);
    return g_steal_pointer(&found);
}
