#include "api/render.h"

#include <string.h>

#include "base/json.h"
#include "base/time.h"
#include "control/placement.h"

static void set(json_t *object, const char *name, json_t *value)
{
    json_object_set_new(object, name, value);
}

json_t *sp_render_time(int64_t realtime_ms)
{
    if (realtime_ms == 0)
        return json_null();
    char text[SP_TIME_TEXT];
    sp_time_format(realtime_ms, text);
    return json_string(text);
}

json_t *sp_render_parsed(const char *text)
{
    json_t *value = text ? sp_json_parse(text, strlen(text), NULL) : NULL;
    return value ? value : json_null();
}

static json_t *duration(int64_t ms)
{
    char text[SP_TIME_TEXT];
    sp_duration_format(ms, text);
    return json_string(text);
}

static json_t *resources(const struct sp_resources *r)
{
    json_t *o = json_object();
    /* a whole number of CPUs is shown as one: 1, not 1.0 */
    json_int_t whole = (json_int_t)r->cpus;
    bool fraction = r->cpus > (double)whole;
    set(o, "cpus", fraction ? json_real(r->cpus) : json_integer(whole));
    set(o, "memory_mb", json_integer(r->memory_mb));
    set(o, "disk_mb", json_integer(r->disk_mb));
    set(o, "pids", json_integer(r->pids));
    return o;
}

/* Names only: the values may be secrets. */
static json_t *env_keys(const char *env)
{
    json_t *keys = json_array();
    g_autoptr(json_t) map = sp_render_parsed(env);
    const char *key;
    json_t *value;
    json_object_foreach(map, key, value)
    {
        json_array_append_new(keys, json_string(key));
    }
    return keys;
}

/* What the server does not know is null: its worker has not spoken yet, or has fallen silent (it
 * repeats what is not zero). */
static json_t *busy(const struct sp_sandbox_row *s, int64_t live_execs, int64_t now_ms)
{
    bool fresh = s->activity_at_ms + SP_ACTIVITY_STALE_MS > now_ms;
    bool attached = s->attached == 0 || (s->attached > 0 && fresh);
    bool cpu = s->cpu_milli == 0 || (s->cpu_milli > 0 && fresh);
    json_t *o = json_object();
    set(o, "sessions", json_integer(s->live_sessions + live_execs));
    set(o, "attached", attached ? json_integer(s->attached) : json_null());
    set(o, "executions", json_integer(0));
    set(o, "cpu", cpu ? json_real((double)s->cpu_milli / 1000) : json_null());
    return o;
}

json_t *sp_render_sandbox(const struct sp_sandbox_row *s, int64_t live_execs, int64_t now_ms)
{
    json_t *o = json_object();
    set(o, "id", sp_json_text(s->id));
    set(o, "name", sp_json_text(s->name));
    set(o, "state", json_string(sp_state_names[s->state]));
    set(o, "desired_state", json_string(sp_desired_names[s->desired]));
    set(o, "state_reason", sp_json_text(s->state_reason));
    set(o, "generation", json_integer(s->generation));
    set(o, "template", sp_json_text(s->template_ref));
    set(o, "template_digest", sp_json_text(s->template_digest));
    set(o, "isolation", json_string(sp_isolation_names[s->isolation]));
    set(o, "isolation_reason", sp_json_text(s->isolation_reason));
    set(o, "resources", resources(&s->resources));
    set(o, "env_keys", env_keys(s->env));
    set(o, "metadata", sp_render_parsed(s->metadata));
    set(o, "network", sp_render_parsed(s->network));
    set(o, "created_at", sp_render_time(s->created_at_ms));
    set(o, "started_at", sp_render_time(s->started_at_ms));
    set(o, "last_active_at", sp_render_time(s->last_active_at_ms));
    set(o, "idle_timeout", duration(s->idle_timeout_ms));
    set(o, "on_idle", json_string(sp_on_idle_names[s->on_idle]));
    set(o, "expires_at",
        sp_render_time(s->max_lifetime_ms ? s->created_at_ms + s->max_lifetime_ms : 0));
    set(o, "busy", busy(s, live_execs, now_ms));
    set(o, "node", sp_json_text(s->node));
    set(o, "parent_snapshot_id", sp_json_text(s->parent_snapshot_id));
    return o;
}

static json_t *error_json(const char *code, const char *message)
{
    json_t *error = json_object();
    set(error, "code", sp_json_text(code));
    set(error, "message", sp_json_text(message));
    return error;
}

json_t *sp_render_snapshot(const struct sp_snapshot_row *n)
{
    json_t *o = json_object();
    set(o, "id", sp_json_text(n->id));
    set(o, "name", sp_json_text(n->name));
    set(o, "sandbox_id", sp_json_text(n->sandbox_id));
    set(o, "parent_id", sp_json_text(n->parent_id));
    set(o, "state", json_string(sp_snapshot_state_names[n->state]));
    set(o, "memory", json_boolean(n->memory));
    set(o, "size_bytes", n->ready_at_ms ? json_integer(n->size_bytes) : json_null());
    set(o, "created_at", sp_render_time(n->created_at_ms));
    set(o, "isolation", json_string(sp_isolation_names[n->isolation]));
    set(o, "template", sp_json_text(n->template_ref));
    set(o, "template_digest", sp_json_text(n->template_digest));
    set(o, "resources", resources(&n->resources));
    set(o, "env_keys", env_keys(n->env));
    set(o, "node", sp_json_text(n->node));
    if (n->error_code)
        set(o, "error", error_json(n->error_code, n->error_message));
    return o;
}

/* The worker counts microseconds; the API says milliseconds with a fraction. */
static json_t *steps(const char *text)
{
    json_t *out = json_array();
    g_autoptr(json_t) in = sp_render_parsed(text);
    json_t *step;
    size_t i;
    json_array_foreach(in, i, step)
    {
        json_t *o = json_object();
        set(o, "name", json_copy(json_object_get(step, "name")));
        set(o, "duration_ms",
            json_real((double)json_integer_value(json_object_get(step, "duration_us")) / 1000));
        json_array_append_new(out, o);
    }
    return out;
}

json_t *sp_render_operation(const struct sp_operation_row *op)
{
    json_t *o = json_object();
    set(o, "id", sp_json_text(op->id));
    set(o, "kind", json_string(sp_operation_kind_names[op->kind]));
    set(o, "sandbox_id", sp_json_text(op->sandbox_id));
    if (op->template_ref)
        set(o, "template", sp_json_text(op->template_ref));
    set(o, "state", json_string(sp_operation_state_names[op->state]));
    if (op->snapshot_id && op->kind != SP_OPERATION_FORK) /* a fork's own is nobody's business */
        set(o, "snapshot_id", sp_json_text(op->snapshot_id));
    if (op->error_code)
        set(o, "error", error_json(op->error_code, op->error_message));
    set(o, "created_at", sp_render_time(op->created_at_ms));
    set(o, "started_at", sp_render_time(op->started_at_ms));
    set(o, "finished_at", sp_render_time(op->finished_at_ms));
    set(o, "steps", steps(op->steps));
    return o;
}

json_t *sp_render_session(const struct sp_session_row *s)
{
    json_t *o = json_object();
    set(o, "id", sp_json_text(s->id));
    set(o, "sandbox_id", sp_json_text(s->sandbox_id));
    set(o, "process_id", sp_json_text(s->process_id));
    set(o, "state", json_string(sp_session_state_names[s->state]));
    set(o, "created_at", sp_render_time(s->created_at_ms));
    set(o, "started_at", sp_render_time(s->started_at_ms));
    set(o, "ended_at", sp_render_time(s->ended_at_ms));
    set(o, "exit", sp_render_parsed(s->exit));
    set(o, "error", sp_render_parsed(s->error));
    return o;
}

json_t *sp_render_template(const struct sp_template_row *t, GPtrArray *nodes)
{
    json_t *o = json_object();
    set(o, "name", sp_json_text(t->name));
    set(o, "tag", sp_json_text(t->tag));
    set(o, "digest", sp_json_text(t->digest));
    set(o, "size_bytes", json_integer(t->size_bytes));
    set(o, "created_at", sp_render_time(t->created_at_ms));
    set(o, "config", sp_render_parsed(t->config));
    bool usable[SP_N_ISOLATIONS] = {false};
    for (unsigned i = 0; i < nodes->len; i++) {
        if (!sp_node_has_template(nodes->pdata[i], t->digest))
            continue;
        g_autoptr(GArray) tiers = sp_node_tiers(nodes->pdata[i]);
        for (unsigned k = 0; k < tiers->len; k++) {
            const struct sp_tier *tier = &g_array_index(tiers, struct sp_tier, k);
            usable[tier->tier] |= tier->available;
        }
    }
    json_t *names = json_array();
    for (unsigned i = 0; i < SP_N_ISOLATIONS; i++) {
        if (usable[i])
            json_array_append_new(names, json_string(sp_isolation_names[i]));
    }
    set(o, "tiers", names);
    return o;
}

json_t *sp_render_node(const struct sp_node_row *node, int64_t now_ms)
{
    json_t *o = json_object();
    set(o, "name", sp_json_text(node->name));
    set(o, "ready", json_boolean(sp_node_ready(node, now_ms)));
    set(o, "data_url", sp_json_text(node->data_url));
    set(o, "tiers", sp_render_parsed(node->tiers));
    set(o, "templates", sp_render_parsed(node->templates));
    set(o, "registered_at", sp_render_time(node->registered_at_ms));
    set(o, "lease_expires_at", sp_render_time(node->lease_expires_at_ms));
    return o;
}
