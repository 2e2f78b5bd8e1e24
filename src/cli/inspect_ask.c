/* What server and worker of an installation know: asked with the keys of its state directory. */
#include "cli/inspect.h"

#include <gio/gio.h>
#include <string.h>

#include "base/error.h"
#include "base/ids.h"
#include "cli/client.h"
#include "cli/client_conf.h"
#include "http/client.h"

#define ASK_TIMEOUT_MS 5000
#define MAX_IDS_AT_ONCE 200

/* {id: item} of a list. */
static json_t *by_id(json_t *list)
{
    json_t *map = json_object();
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(list, "items"), i, item)
    {
        const char *id = json_string_value(json_object_get(item, "id"));
        if (id)
            json_object_set(map, id, item);
    }
    return map;
}

static bool ask_rows(struct sp_facts *facts, const struct sp_client_conf *conf, GError **error)
{
    SP_CLEANUP(sp_client_free_p) struct sp_client *api = sp_client_open_with(conf);
    g_autoptr(json_t) sandboxes = sp_client_list(api, "/v1/sandboxes", error);
    g_autoptr(json_t) snapshots = sandboxes ? sp_client_list(api, "/v1/snapshots", error) : NULL;
    if (!snapshots)
        return false;
    facts->sandboxes = by_id(sandboxes);
    facts->snapshots = by_id(snapshots);
    return true;
}

/* Deleted snapshots are in no list; the operations that ended them are, for a day. */
static bool ask_deleted_snapshots(struct sp_facts *facts, const struct sp_client_conf *conf,
                                  GError **error)
{
    SP_CLEANUP(sp_client_free_p) struct sp_client *api = sp_client_open_with(conf);
    g_autoptr(json_t) list =
        sp_client_list(api, "/v1/operations?kind=snapshot_delete&state=succeeded", error);
    size_t i;
    json_t *operation;
    json_array_foreach(json_object_get(list, "items"), i, operation)
    {
        const char *id = json_string_value(json_object_get(operation, "snapshot_id"));
        if (id)
            json_object_set_new(facts->known, id, json_pack("{s:s}", "desired_state", "deleted"));
    }
    return list != NULL;
}

static void add_id(json_t *ids, const char *name)
{
    if (sp_id_valid(name, "sbx"))
        json_object_set_new(ids, name, json_true());
}

/* Every sandbox of which something is on this host, as the members of an object. */
static json_t *ids_seen(const struct sp_facts *facts)
{
    json_t *ids = json_object();
    for (guint i = 0; i < facts->things->len; i++)
        add_id(ids, ((struct sp_thing *)facts->things->pdata[i])->owner);
    for (guint i = 0; i < facts->owners->len; i++)
        add_id(ids, ((struct sp_owner *)facts->owners->pdata[i])->dir);
    return ids;
}

static bool ask_some(struct sp_http_client *client, json_t *ids, json_t *known, GError **error)
{
    g_autoptr(json_t) body = json_pack("{s:s, s:O}", "node", "local", "ids", ids);
    g_autoptr(json_t) answer = sp_http_call_json(client, "POST", "/worker/v1/desired_of", body,
                                                 ASK_TIMEOUT_MS, NULL, error);
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(answer, "sandboxes"), i, item)
    {
        const char *id = json_string_value(json_object_get(item, "id"));
        if (id)
            json_object_set(known, id, item);
    }
    return answer != NULL;
}

/* What the server says of ids that no list of live ones names: deleted, or never heard of. */
static bool ask_known(struct sp_facts *facts, const char *url, const char *node_key, GError **error)
{
    struct sp_http_client *client = sp_http_client_new(url, node_key);
    g_autoptr(json_t) seen = ids_seen(facts);
    g_autoptr(json_t) some = json_array();
    facts->known = json_object();
    bool ok = true;
    const char *id;
    json_t *ignored;
    json_object_foreach(seen, id, ignored)
    {
        json_array_append_new(some, json_string(id));
        if (json_array_size(some) < MAX_IDS_AT_ONCE)
            continue;
        ok = ok && ask_some(client, some, facts->known, error);
        json_array_clear(some);
    }
    ok = ok && (json_array_size(some) == 0 || ask_some(client, some, facts->known, error));
    sp_http_client_free(client);
    return ok;
}

/* The node key goes to this machine only: the data plane's address for clients may be a proxy's. */
static bool is_here(const char *url)
{
    g_autoptr(GUri) uri = g_uri_parse(url, G_URI_FLAGS_NONE, NULL);
    const char *host = uri ? g_uri_get_host(uri) : NULL;
    g_autoptr(GInetAddress) address = host ? g_inet_address_new_from_string(host) : NULL;
    return address && g_inet_address_get_is_loopback(address);
}

static bool ask_worker(struct sp_facts *facts, const char *data_url, const char *node_key,
                       GError **error)
{
    if (!data_url || !is_here(data_url)) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED,
                    "its address for clients, %s, is not on this machine",
                    data_url ? data_url : "which is not known");
        return false;
    }
    struct sp_http_client *client = sp_http_client_new(data_url, node_key);
    facts->inventory =
        sp_http_call_json(client, "GET", "/node/v1/inventory", NULL, ASK_TIMEOUT_MS, NULL, error);
    sp_http_client_free(client);
    return facts->inventory != NULL;
}

void sp_facts_ask(struct sp_facts *facts)
{
    if (!facts->daemons_run) {
        facts->server_detail = g_strdup("it does not run");
        facts->worker_detail = g_strdup("it does not run");
        return;
    }
    g_autofree char *conf_path = g_build_filename(facts->state_dir, "client.conf", NULL);
    g_autofree char *key_path = g_build_filename(facts->state_dir, "node.key", NULL);
    g_autofree char *key = NULL;
    struct sp_client_conf conf = {0};
    g_autoptr(GError) server_error = NULL;
    g_autoptr(GError) worker_error = NULL;
    if (!sp_client_conf_load(conf_path, &conf, &server_error) ||
        !g_file_get_contents(key_path, &key, NULL, &server_error)) {
        facts->server_detail = g_strdup(server_error->message);
        facts->worker_detail = g_strdup(server_error->message);
        sp_client_conf_clear(&conf);
        return;
    }
    g_strstrip(key);
    facts->server_answers = ask_rows(facts, &conf, &server_error) &&
                            ask_known(facts, conf.url, key, &server_error) &&
                            ask_deleted_snapshots(facts, &conf, &server_error);
    facts->worker_answers = ask_worker(facts, conf.data_url, key, &worker_error);
    facts->server_detail = server_error ? g_strdup(server_error->message) : NULL;
    facts->worker_detail = worker_error ? g_strdup(worker_error->message) : NULL;
    sp_client_conf_clear(&conf);
}
