#include "api/handlers.h"
#include "api/render.h"
#include "base/error.h"

bool sp_api_operation_get(struct sp_api_call *call, GError **error)
{
    const char *id = sp_http_param(call->http, 0);
    if (!sp_id_valid(id, "op")) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no such operation");
        return false;
    }
    struct sp_operation_row *op =
        sp_store_operation_get(call->api->store, call->key->tenant, id, error);
    if (!op)
        return false;
    sp_api_reply(call, 200, sp_render_operation(op));
    sp_operation_row_free(op);
    return true;
}

static json_t *render(struct sp_api_call *call, const void *row)
{
    return sp_render_operation(row);
}

static const char *id_of(const void *row)
{
    return ((const struct sp_operation_row *)row)->id;
}

bool sp_api_operation_list(struct sp_api_call *call, GError **error)
{
    static const char *const allowed[] = {"sandbox_id", "state", "kind", NULL};
    struct sp_page page;
    struct sp_operation_filter filter = {.tenant = call->key->tenant};
    if (!sp_api_page(call, "op", allowed, &page, error) ||
        !sp_api_query_choice(call, "state", sp_operation_state_names, &filter.state, error) ||
        !sp_api_query_choice(call, "kind", sp_operation_kind_names, &filter.kind, error))
        return false;
    filter.sandbox_id = sp_http_query(call->http, "sandbox_id");
    filter.before_id = page.has_cursor ? page.cursor : NULL;
    filter.limit = page.limit + 1;
    g_autoptr(GPtrArray) rows = sp_store_operation_list(call->api->store, &filter, error);
    if (!rows)
        return false;
    sp_api_reply(call, 200, sp_api_list(call, rows, page.limit, render, id_of));
    return true;
}
