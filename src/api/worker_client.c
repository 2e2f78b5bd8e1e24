#include "api/worker_client.h"

#include "base/error.h"

/* A worker that is being restarted listens again within this time. */
#define RESTART_MS 10000

struct sp_workers {
    GMutex lock; /* a leaf: guards both tables, not the calls */
    char *node_key;
    GHashTable *clients; /* data URL → struct sp_http_client; kept until the end */
    GHashTable *execs;   /* sandbox id → number */
};

static void client_free(gpointer client)
{
    sp_http_client_free(client);
}

struct sp_workers *sp_workers_new(const char *node_key)
{
    struct sp_workers *w = g_new0(struct sp_workers, 1);
    g_mutex_init(&w->lock);
    w->node_key = g_strdup(node_key);
    w->clients = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, client_free);
    w->execs = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    return w;
}

void sp_workers_free(struct sp_workers *w)
{
    if (!w)
        return;
    g_hash_table_unref(w->clients);
    g_hash_table_unref(w->execs);
    g_mutex_clear(&w->lock);
    g_free(w->node_key);
    g_free(w);
}

static struct sp_http_client *client_of(struct sp_workers *w, const char *url)
{
    g_mutex_lock(&w->lock);
    struct sp_http_client *client = g_hash_table_lookup(w->clients, url);
    if (!client) {
        client = sp_http_client_new(url, w->node_key);
        g_hash_table_insert(w->clients, g_strdup(url), client);
    }
    g_mutex_unlock(&w->lock);
    return client;
}

struct watch {
    struct sp_api_call *call;
    const struct sp_worker_call *ask;
};

static bool cancelled(void *user)
{
    struct watch *watch = user;
    if (watch->ask->tick)
        watch->ask->tick(watch->ask->user);
    return g_atomic_int_get(&watch->call->api->stopping) || sp_http_client_gone(watch->call->http);
}

bool sp_worker_ask(struct sp_api_call *call, const char *node, const struct sp_worker_call *ask,
                   struct sp_http_answer *ret, GError **error)
{
    struct sp_node_row *row = sp_store_node_get(call->api->store, node, error);
    if (!row)
        return false;
    struct sp_http_client *client = client_of(call->api->workers, row->data_url);
    sp_node_row_free(row);
    struct watch watch = {call, ask};
    struct sp_http_call http = {
        .method = ask->method,
        .path = ask->path,
        .json = ask->json,
        .timeout_ms = ask->timeout_ms,
        .connect_retry_ms = RESTART_MS,
        .cancelled = cancelled,
        .user = &watch,
    };
    struct sp_http_answer answer = {0};
    if (!sp_http_call(client, &http, &answer, error)) {
        g_prefix_error(error, "the worker does not answer: ");
        return false;
    }
    if (answer.status < 200 || answer.status > 299) {
        sp_http_answer_to_error(&answer, error);
        sp_http_answer_clear(&answer);
        return false;
    }
    *ret = answer;
    return true;
}

static void exec_add(struct sp_workers *w, const char *sandbox_id, int by)
{
    g_mutex_lock(&w->lock);
    int n = GPOINTER_TO_INT(g_hash_table_lookup(w->execs, sandbox_id)) + by;
    if (n > 0)
        g_hash_table_insert(w->execs, g_strdup(sandbox_id), GINT_TO_POINTER(n));
    else
        g_hash_table_remove(w->execs, sandbox_id);
    g_mutex_unlock(&w->lock);
}

void sp_workers_exec_begin(struct sp_workers *w, const char *sandbox_id)
{
    exec_add(w, sandbox_id, 1);
}

void sp_workers_exec_end(struct sp_workers *w, const char *sandbox_id)
{
    exec_add(w, sandbox_id, -1);
}

int64_t sp_workers_execs(struct sp_workers *w, const char *sandbox_id)
{
    g_mutex_lock(&w->lock);
    int n = GPOINTER_TO_INT(g_hash_table_lookup(w->execs, sandbox_id));
    g_mutex_unlock(&w->lock);
    return n;
}
