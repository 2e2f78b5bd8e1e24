#include <string.h>

#include "api/handlers.h"
#include "api/render.h"
#include "base/error.h"
#include "base/time.h"
#include "control/placement.h"
#include "model/cursor.h"

static bool build(struct sp_api_call *call, const struct sp_template_request *request,
                  struct sp_replay *ret, GError **error)
{
    struct sp_store *store = call->api->store;
    if (!sp_store_replay_find(store, &call->idem, ret, error))
        return false;
    if (ret->found)
        return true;
    g_autoptr(GPtrArray) nodes = sp_store_node_list(store, error);
    if (!nodes)
        return false;
    const struct sp_node_row *node = sp_place_any(nodes, sp_time_now_ms());
    if (!node) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_UNAVAILABLE,
                            "no worker is ready now; try again in some seconds");
        return false;
    }
    return sp_store_build_create(store, call->key->tenant, node->name, request, &call->idem, ret,
                                 error);
}

bool sp_api_template_build(struct sp_api_call *call, GError **error)
{
    struct sp_template_request request;
    struct sp_replay made;
    if (!sp_template_request_decode(call->body, &request, error))
        return false;
    bool ok = build(call, &request, &made, error);
    sp_template_request_clear(&request);
    if (!ok)
        return false;
    struct sp_operation_row *op = sp_api_wait(call, made.operation_id, error);
    if (!op)
        return false;
    sp_api_reply_operation(call, op, NULL, call->wait_ms > 0 ? 201 : 202);
    sp_operation_row_free(op);
    return true;
}

static bool path_ref(struct sp_api_call *call, struct sp_template_ref *ret, GError **error)
{
    if (sp_template_ref_parse(sp_http_param(call->http, 0), ret))
        return true;
    g_set_error_literal(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no such template");
    return false;
}

bool sp_api_template_get(struct sp_api_call *call, GError **error)
{
    struct sp_template_ref ref;
    if (!path_ref(call, &ref, error))
        return false;
    g_autoptr(GPtrArray) nodes = sp_store_node_list(call->api->store, error);
    struct sp_template_row *t = nodes ? sp_store_template_get(call->api->store, &ref, error) : NULL;
    if (!t)
        return false;
    sp_api_reply(call, 200, sp_render_template(t, nodes));
    sp_template_row_free(t);
    return true;
}

/* The list's renderer needs the nodes as well: each row is rendered with them read once. */
bool sp_api_template_list(struct sp_api_call *call, GError **error)
{
    static const char *const allowed[] = {NULL};
    struct sp_page page;
    if (!sp_api_page(call, NULL, allowed, &page, error))
        return false;
    g_autoptr(GPtrArray) nodes = sp_store_node_list(call->api->store, error);
    g_autoptr(GPtrArray) rows =
        nodes ? sp_store_template_list(call->api->store, page.has_cursor ? page.cursor : NULL,
                                       page.limit + 1, error)
              : NULL;
    if (!rows)
        return false;
    json_t *items = json_array();
    for (unsigned i = 0; i < MIN(rows->len, page.limit); i++)
        json_array_append_new(items, sp_render_template(rows->pdata[i], nodes));
    g_autofree char *next = NULL;
    if (rows->len > page.limit) {
        const struct sp_template_row *last = rows->pdata[page.limit - 1];
        g_autofree char *ref = g_strconcat(last->name, ":", last->tag, NULL);
        next = sp_cursor_encode(ref);
    }
    json_t *list = json_object();
    json_object_set_new(list, "items", items);
    json_object_set_new(list, "next_cursor", sp_json_text(next));
    sp_api_reply(call, 200, list);
    return true;
}

bool sp_api_template_log(struct sp_api_call *call, GError **error)
{
    struct sp_template_ref ref;
    if (!path_ref(call, &ref, error))
        return false;
    struct sp_build_row *b = sp_store_build_find(call->api->store, &ref, error);
    if (!b)
        return false;
    sp_api_reply_bytes(call, 200, "text/plain; charset=utf-8", b->log, strlen(b->log));
    sp_build_row_free(b);
    return true;
}

bool sp_api_template_delete(struct sp_api_call *call, GError **error)
{
    struct sp_template_ref ref;
    if (!path_ref(call, &ref, error) ||
        !sp_store_template_delete(call->api->store, &ref, &call->idem, error))
        return false;
    sp_api_reply(call, 200, json_object());
    return true;
}
