#include <string.h>

#include "api/handlers.h"
#include "api/render.h"
#include "base/error.h"

static json_t *render(struct sp_api_call *call, const void *row)
{
    return sp_render_snapshot(row);
}

static const char *id_of(const void *row)
{
    return ((const struct sp_snapshot_row *)row)->id;
}

static bool path_id(struct sp_api_call *call, const char **ret, GError **error)
{
    const char *id = sp_http_param(call->http, 0);
    if (!sp_id_valid(id, "snp")) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no such snapshot");
        return false;
    }
    *ret = id;
    return true;
}

static bool reply_made(struct sp_api_call *call, const struct sp_replay *made, GError **error)
{
    struct sp_store *store = call->api->store;
    struct sp_operation_row *op = sp_api_wait(call, made->operation_id, error);
    if (!op)
        return false;
    GError *why = NULL;
    struct sp_snapshot_row *n =
        sp_store_snapshot_get(store, call->key->tenant, made->resource_id, &why);
    if (!n && !g_error_matches(why, SP_ERROR, SP_ERROR_NOT_FOUND)) {
        g_propagate_error(error, why);
        sp_operation_row_free(op);
        return false;
    }
    g_clear_error(&why);
    g_autofree char *location = g_strconcat("/v1/snapshots/", made->resource_id, NULL);
    sp_http_add_header(call->http, "Location", location);
    json_t *extra = json_object();
    /* null: the request is repeated, and the snapshot has been deleted since */
    json_object_set_new(extra, "snapshot", n ? sp_render_snapshot(n) : json_null());
    sp_api_reply_operation(call, op, extra, call->wait_ms > 0 ? 201 : 202);
    sp_snapshot_row_free(n);
    sp_operation_row_free(op);
    return true;
}

bool sp_api_snapshot_create(struct sp_api_call *call, GError **error)
{
    struct sp_snapshot_request request;
    struct sp_replay made;
    if (!sp_snapshot_request_decode(call->body, &request, error))
        return false;
    const char *id;
    bool ok = sp_api_sandbox_id(call, &id, error) &&
              sp_store_snapshot_create(call->api->store, call->key->tenant, id, &request,
                                       &call->idem, &made, error);
    sp_snapshot_request_clear(&request);
    return ok && reply_made(call, &made, error);
}

bool sp_api_snapshot_list(struct sp_api_call *call, GError **error)
{
    static const char *const allowed[] = {"sandbox_id", NULL};
    struct sp_page page;
    struct sp_snapshot_filter filter = {.tenant = call->key->tenant};
    if (!sp_api_page(call, "snp", allowed, &page, error))
        return false;
    filter.sandbox_id = sp_http_query(call->http, "sandbox_id");
    filter.before_id = page.has_cursor ? page.cursor : NULL;
    filter.limit = page.limit + 1;
    g_autoptr(GPtrArray) rows = sp_store_snapshot_list(call->api->store, &filter, error);
    if (!rows)
        return false;
    sp_api_reply(call, 200, sp_api_list(call, rows, page.limit, render, id_of));
    return true;
}

bool sp_api_snapshot_get(struct sp_api_call *call, GError **error)
{
    const char *id;
    struct sp_snapshot_row *n =
        path_id(call, &id, error)
            ? sp_store_snapshot_get(call->api->store, call->key->tenant, id, error)
            : NULL;
    if (!n)
        return false;
    sp_api_reply(call, 200, sp_render_snapshot(n));
    sp_snapshot_row_free(n);
    return true;
}

bool sp_api_snapshot_delete(struct sp_api_call *call, GError **error)
{
    const char *id;
    char operation_id[SP_ID_MAX];
    if (!path_id(call, &id, error) ||
        !sp_store_snapshot_delete(call->api->store, call->key->tenant, id, &call->idem,
                                  operation_id, error))
        return false;
    struct sp_operation_row *op = sp_api_wait(call, operation_id, error);
    if (!op)
        return false;
    sp_api_reply_operation(call, op, NULL, 200);
    sp_operation_row_free(op);
    return true;
}
