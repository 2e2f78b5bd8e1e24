#include <string.h>

#include "api/handlers.h"
#include "api/render.h"
#include "api/worker_client.h"
#include "base/error.h"
#include "base/time.h"
#include "control/placement.h"

json_t *sp_api_render_sandbox(struct sp_api_call *call, const struct sp_sandbox_row *s)
{
    return sp_render_sandbox(s, sp_workers_execs(call->api->workers, s->id), sp_time_now_ms());
}

static json_t *render(struct sp_api_call *call, const void *row)
{
    return sp_api_render_sandbox(call, row);
}

static const char *id_of(const void *row)
{
    return ((const struct sp_sandbox_row *)row)->id;
}

bool sp_api_sandbox_id(struct sp_api_call *call, const char **ret, GError **error)
{
    const char *id = sp_http_param(call->http, 0);
    if (!sp_id_valid(id, "sbx")) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no such sandbox");
        return false;
    }
    *ret = id;
    return true;
}

struct sp_sandbox_row *sp_api_sandbox(struct sp_api_call *call, GError **error)
{
    const char *id;
    if (!sp_api_sandbox_id(call, &id, error))
        return NULL;
    struct sp_sandbox_row *s = sp_store_sandbox_get(call->api->store, call->key->tenant, id, error);
    if (s)
        sp_store_sandbox_touch(call->api->store, s);
    return s;
}

struct sp_sandbox_row *sp_api_running_sandbox(struct sp_api_call *call, GError **error)
{
    struct sp_sandbox_row *s = sp_api_sandbox(call, error);
    if (s && s->state != SP_STATE_RUNNING) {
        sp_sandbox_set_not_running(error, s->state);
        g_clear_pointer(&s, sp_sandbox_row_free);
    }
    return s;
}

/* A template that is not there is a wrong value of the field, not a missing page. */
static struct sp_template_row *find_template(struct sp_api_call *call, const char *text,
                                             GError **error)
{
    struct sp_template_ref ref;
    if (!sp_template_ref_parse(text, &ref))
        g_assert_not_reached(); /* the decoder has checked it */
    GError *why = NULL;
    struct sp_template_row *t = sp_store_template_get(call->api->store, &ref, &why);
    if (g_error_matches(why, SP_ERROR, SP_ERROR_NOT_FOUND)) {
        sp_error_set_field(error, "/template", "%s", why->message);
        g_error_free(why);
    } else if (why) {
        g_propagate_error(error, why);
    }
    return t;
}

/* The snapshot of a request, as find_template(). */
static struct sp_snapshot_row *find_snapshot(struct sp_api_call *call, const char *id,
                                             GError **error)
{
    GError *why = NULL;
    struct sp_snapshot_row *n =
        sp_store_snapshot_get(call->api->store, call->key->tenant, id, &why);
    if (g_error_matches(why, SP_ERROR, SP_ERROR_NOT_FOUND)) {
        sp_error_set_field(error, "/snapshot_id", "%s", why->message);
        g_error_free(why);
    } else if (why) {
        g_propagate_error(error, why);
    } else if (n->state != SP_SNAPSHOT_READY) {
        sp_error_set_code_field(error, SP_ERROR_FAILED_PRECONDITION, "/snapshot_id",
                                "snapshot %s is %s, not ready", id,
                                sp_snapshot_state_names[n->state]);
        g_clear_pointer(&n, sp_snapshot_row_free);
    }
    return n;
}

static bool create_from_snapshot(struct sp_api_call *call, const struct sp_sandbox_request *request,
                                 struct sp_replay *ret, GError **error)
{
    struct sp_store *store = call->api->store;
    struct sp_snapshot_row *n = find_snapshot(call, request->snapshot_id, error);
    g_autoptr(GPtrArray) nodes = n ? sp_store_node_list(store, error) : NULL;
    struct sp_placement placement;
    bool ok =
        nodes && sp_place_on(nodes, sp_time_now_ms(), n->node, n->isolation, &placement, error);
    if (ok) {
        struct sp_sandbox_new new = {.tenant = call->key->tenant,
                                     .request = request,
                                     .node = n->node,
                                     .template_digest = n->template_digest,
                                     .isolation = n->isolation,
                                     .isolation_reason = "as the snapshot",
                                     .snapshot = n};
        ok = sp_store_sandbox_create(store, &new, &call->idem, ret, error);
    }
    sp_snapshot_row_free(n);
    return ok;
}

static bool create(struct sp_api_call *call, const struct sp_sandbox_request *request,
                   struct sp_replay *ret, GError **error)
{
    struct sp_store *store = call->api->store;
    if (!sp_store_replay_find(store, &call->idem, ret, error))
        return false;
    if (ret->found)
        return true;
    if (request->snapshot_id)
        return create_from_snapshot(call, request, ret, error);
    struct sp_template_row *t = find_template(call, request->template_ref, error);
    g_autoptr(GPtrArray) nodes = t ? sp_store_node_list(store, error) : NULL;
    struct sp_placement placement;
    bool ok = nodes && sp_place(nodes, sp_time_now_ms(), request->isolation, request->untrusted,
                                t->digest, &placement, error);
    if (ok) {
        struct sp_sandbox_new new = {.tenant = call->key->tenant,
                                     .request = request,
                                     .node = placement.node->name,
                                     .template_digest = t->digest,
                                     .isolation = placement.isolation,
                                     .isolation_reason = placement.isolation_reason};
        ok = sp_store_sandbox_create(store, &new, &call->idem, ret, error);
    }
    sp_template_row_free(t);
    return ok;
}

bool sp_api_sandbox_create(struct sp_api_call *call, GError **error)
{
    struct sp_sandbox_request request;
    struct sp_replay made;
    if (!sp_sandbox_request_decode(call->body, &request, error))
        return false;
    /* "seed" is "seed:latest", and is shown so. */
    if (!strchr(request.template_ref, ':')) {
        char *full = g_strconcat(request.template_ref, ":latest", NULL);
        g_free(request.template_ref);
        request.template_ref = full;
    }
    bool ok = create(call, &request, &made, error);
    sp_sandbox_request_clear(&request);
    if (!ok)
        return false;

    struct sp_operation_row *op = sp_api_wait(call, made.operation_id, error);
    if (!op)
        return false;
    struct sp_sandbox_row *s =
        sp_store_sandbox_get_any(call->api->store, call->key->tenant, made.resource_id, error);
    if (s) {
        g_autofree char *location = g_strconcat("/v1/sandboxes/", s->id, NULL);
        sp_http_add_header(call->http, "Location", location);
        json_t *extra = json_object();
        json_object_set_new(extra, "sandbox", render(call, s));
        sp_api_reply_operation(call, op, extra, call->wait_ms > 0 ? 201 : 202);
        sp_sandbox_row_free(s);
    }
    sp_operation_row_free(op);
    return s != NULL;
}

bool sp_api_sandbox_get(struct sp_api_call *call, GError **error)
{
    struct sp_sandbox_row *s = sp_api_sandbox(call, error);
    if (!s)
        return false;
    sp_api_reply(call, 200, render(call, s));
    sp_sandbox_row_free(s);
    return true;
}

struct metadata_filters {
    struct sp_sandbox_filter *filter;
    bool too_many;
};

static bool add_metadata_filter(void *user, const char *name, const char *value)
{
    struct metadata_filters *f = user;
    if (strncmp(name, "metadata.", 9) != 0)
        return true;
    if (f->filter->n_metadata == SP_MAX_METADATA_FILTERS) {
        f->too_many = true;
        return false;
    }
    f->filter->metadata_keys[f->filter->n_metadata] = name + 9;
    f->filter->metadata_values[f->filter->n_metadata++] = value ? value : "";
    return true;
}

bool sp_api_sandbox_list(struct sp_api_call *call, GError **error)
{
    static const char *const allowed[] = {"state", "template", "metadata.", NULL};
    struct sp_page page;
    struct sp_sandbox_filter filter = {.tenant = call->key->tenant};
    struct metadata_filters metadata = {.filter = &filter};
    struct sp_template_ref ref;
    if (!sp_api_page(call, "sbx", allowed, &page, error) ||
        !sp_api_query_choice(call, "state", sp_state_names, &filter.state, error))
        return false;
    sp_http_query_each(call->http, add_metadata_filter, &metadata);
    if (metadata.too_many) {
        sp_error_set_field(error, "metadata", "at most %d metadata filters are possible",
                           SP_MAX_METADATA_FILTERS);
        return false;
    }
    const char *template = sp_http_query(call->http, "template");
    g_autofree char *full = NULL;
    if (template) {
        if (!sp_template_ref_parse(template, &ref)) {
            sp_error_set_field(error, "template", "template must be name:tag or a digest");
            return false;
        }
        full = ref.digest[0] ? g_strdup(ref.digest) : g_strconcat(ref.name, ":", ref.tag, NULL);
    }
    filter.template_ref = full;
    filter.before_id = page.has_cursor ? page.cursor : NULL;
    filter.limit = page.limit + 1;
    g_autoptr(GPtrArray) rows = sp_store_sandbox_list(call->api->store, &filter, error);
    if (!rows)
        return false;
    sp_api_reply(call, 200, sp_api_list(call, rows, page.limit, render, id_of));
    return true;
}

bool sp_api_sandbox_patch(struct sp_api_call *call, GError **error)
{
    const char *id;
    struct sp_sandbox_patch patch;
    if (!sp_api_sandbox_id(call, &id, error) || !sp_sandbox_patch_decode(call->body, &patch, error))
        return false;
    bool ok =
        sp_store_sandbox_patch(call->api->store, call->key->tenant, id, &patch, &call->idem, error);
    sp_sandbox_patch_clear(&patch);
    return ok && sp_api_sandbox_get(call, error);
}

bool sp_api_sandbox_delete(struct sp_api_call *call, GError **error)
{
    const char *id;
    char operation_id[SP_ID_MAX];
    if (!sp_api_sandbox_id(call, &id, error) ||
        !sp_store_sandbox_delete(call->api->store, call->key->tenant, id, NULL, &call->idem,
                                 operation_id, error))
        return false;
    struct sp_operation_row *op = sp_api_wait(call, operation_id, error);
    if (!op)
        return false;
    sp_api_reply_operation(call, op, NULL, 200);
    sp_operation_row_free(op);
    return true;
}
