/* The worker protocol, what the worker reports of snapshots and activity. */
#include <string.h>

#include "api/handlers.h"
#include "api/worker_json.h"
#include "base/error.h"
#include "base/time.h"

#define FRESH_MS 1000

void sp_api_measure(struct sp_api_call *call, const char *operation_id)
{
    struct sp_operation_row *op =
        operation_id ? sp_store_operation_get(call->api->store, NULL, operation_id, NULL) : NULL;
    if (op && op->state == SP_OPERATION_SUCCEEDED &&
        sp_time_now_ms() - op->finished_at_ms < FRESH_MS)
        sp_metrics_operation(call->api->metrics, op->kind,
                             (op->finished_at_ms - op->created_at_ms) * 1000);
    sp_operation_row_free(op);
}

static bool read_snapshot(json_t *item, struct sp_snapshot_report *ret, GPtrArray *texts,
                          GError **error)
{
    static const enum sp_snapshot_state possible[] = {SP_SNAPSHOT_READY, SP_SNAPSHOT_FAILED,
                                                      SP_SNAPSHOT_DELETED};
    const char *state;
    if (!sp_worker_text(item, "id", true, &ret->id, error) ||
        !sp_worker_text(item, "state", true, &state, error) ||
        !sp_worker_integer(item, "size_bytes", false, &ret->size_bytes, error))
        return false;
    bool known = false;
    for (unsigned i = 0; !known && i < G_N_ELEMENTS(possible); i++) {
        known = strcmp(state, sp_snapshot_state_names[possible[i]]) == 0;
        ret->state = possible[i];
    }
    if (!known) {
        sp_error_set_field(error, "/snapshots", "unknown state %s", state);
        return false;
    }
    json_t *memory = json_object_get(item, "memory");
    ret->memory_set = json_is_boolean(memory);
    ret->memory = json_is_true(memory);
    sp_worker_error(item, &ret->error_code, &ret->error_message);
    char *steps = sp_worker_dump(item, "steps");
    ret->steps = steps;
    if (steps)
        g_ptr_array_add(texts, steps);
    return true;
}

static void measure(struct sp_api_call *call, const struct sp_snapshot_report *reports, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (reports[i].state != SP_SNAPSHOT_READY)
            continue;
        struct sp_snapshot_row *row =
            sp_store_snapshot_get(call->api->store, NULL, reports[i].id, NULL);
        if (row)
            sp_api_measure(call, row->operation_id);
        sp_snapshot_row_free(row);
    }
}

bool sp_api_worker_snapshots(struct sp_api_call *call, GError **error)
{
    const char *node;
    json_t *list, *item;
    size_t i;
    if (!sp_worker_text(call->body, "node", true, &node, error) ||
        !sp_worker_array(call->body, "snapshots", &list, error))
        return false;
    unsigned n = (unsigned)json_array_size(list);
    g_autofree struct sp_snapshot_report *reports = g_new0(struct sp_snapshot_report, n + 1);
    g_autoptr(GPtrArray) texts = g_ptr_array_new_with_free_func(g_free);
    json_array_foreach(list, i, item)
    {
        if (!read_snapshot(item, &reports[i], texts, error))
            return false;
    }
    if (!sp_store_snapshot_report(call->api->store, node, reports, n, error))
        return false;
    sp_api_reply(call, 200, json_object());
    measure(call, reports, n);
    return true;
}

bool sp_api_worker_activity(struct sp_api_call *call, GError **error)
{
    const char *node;
    json_t *list, *item;
    size_t i;
    if (!sp_worker_text(call->body, "node", true, &node, error) ||
        !sp_worker_array(call->body, "sandboxes", &list, error))
        return false;
    unsigned n = (unsigned)json_array_size(list);
    g_autofree struct sp_activity *items = g_new0(struct sp_activity, n + 1);
    json_array_foreach(list, i, item)
    {
        double cpu_percent;
        if (!sp_worker_text(item, "id", true, &items[i].id, error) ||
            !sp_worker_integer(item, "attached", false, &items[i].attached, error) ||
            !sp_worker_number(item, "cpu_percent", &cpu_percent, error))
            return false;
        items[i].cpu_milli = (int64_t)(MIN(cpu_percent, 1e6) * 1000);
    }
    if (n > 0 && !sp_store_activity(call->api->store, node, items, n, error))
        return false;
    sp_api_reply(call, 200, json_object());
    return true;
}
