#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <gio/gio.h>

#include "base/error.h"
#include "base/json.h"
#include "base/time.h"
#include "cli/database.h"
#include "cli/tiers.h"
#include "cli/up.h"
#include "http/client.h"
#include "os/cleanup.h"

#define POLL_MS 20
#define PROBE_TIMEOUT_MS 2000
#define COUNT_TIMEOUT_MS 3000
#define NODE_LEASE_MS 15000    /* docs/worker-protocol.md, register */
#define TIERS_TIMEOUT_MS 30000 /* a trial takes at most 20 s (driver.h, probe()) */

/* "http://" and the address, where an address that means "all" is reached by loopback. */
static char *url_of(const char *address)
{
    if (g_str_has_prefix(address, "0.0.0.0:"))
        return g_strconcat("http://127.0.0.1", address + strlen("0.0.0.0"), NULL);
    if (g_str_has_prefix(address, "[::]:"))
        return g_strconcat("http://[::1]", address + strlen("[::]"), NULL);
    return g_strconcat("http://", address, NULL);
}

/* An address in use is said at once and by name, rather than by a daemon that dies. */
static bool check_address(const char *option, const char *address, GError **error)
{
    g_autoptr(GError) cause = NULL;
    g_autoptr(GSocketConnectable) parsed = g_network_address_parse(address, 0, &cause);
    GNetworkAddress *network = parsed ? G_NETWORK_ADDRESS(parsed) : NULL;
    g_autoptr(GInetAddress) host =
        network ? g_inet_address_new_from_string(g_network_address_get_hostname(network)) : NULL;
    guint16 port = network ? g_network_address_get_port(network) : 0;
    if (!host || port == 0) {
        g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                    "--%s %s: not an address with a port, such as 127.0.0.1:7070 or [::1]:7070",
                    option, address);
        return false;
    }
    g_autoptr(GSocketAddress) socket_address = g_inet_socket_address_new(host, port);
    g_autoptr(GSocket) socket = g_socket_new(g_inet_address_get_family(host), G_SOCKET_TYPE_STREAM,
                                             G_SOCKET_PROTOCOL_TCP, &cause);
    if (socket && g_socket_bind(socket, socket_address, TRUE, &cause) &&
        g_socket_listen(socket, &cause))
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION, "--%s %s: %s", option, address,
                cause->message);
    return false;
}

static void add_server(struct sp_up *up, const struct sp_up_config *config)
{
    char hash[SP_HASH_HEX];
    sp_secret_hash(up->state.api_key, hash);
    /* the database too: a password may stand in its URL. Always said, so that no variable of the
     * environment has a word in it. */
    g_autoptr(json_t) secrets =
        json_pack("{s:s, s:s, s:s}", "node_key", up->state.node_key, "api_key_hash", hash,
                  "database", up->database ? up->database : SP_DATABASE_SQLITE);
    g_autofree char *dir = sp_state_dir_file(&up->state, "server");
    bool drop = up->state.server_uid != (uid_t)-1;
    g_autofree char *uid = g_strdup_printf("--uid=%u", (unsigned)up->state.server_uid);
    g_autofree char *listen = g_strconcat("--listen=", config->api, NULL);
    g_autofree char *state = g_strconcat("--state=", dir, NULL);
    char *arguments[] = {state,
                         listen,
                         (char *)"--secrets-fd=" G_STRINGIFY(SP_DAEMON_SECRETS_FD),
                         (char *)"--parent-fd=" G_STRINGIFY(SP_DAEMON_PARENT_FD),
                         drop ? uid : NULL,
                         NULL};
    sp_supervisor_add(up->supervisor, "server", arguments, secrets);
}

static void add_option(GPtrArray *arguments, const char *name, const char *value)
{
    if (value)
        g_ptr_array_add(arguments, g_strdup_printf("--%s=%s", name, value));
}

static void add_worker(struct sp_up *up, const struct sp_up_config *config)
{
    g_autoptr(json_t) secrets = json_pack("{s:s}", "node_key", up->state.node_key);
    g_autoptr(GPtrArray) arguments = g_ptr_array_new_with_free_func(g_free);
    g_autofree char *max_mb =
        config->volume_max_mb ? g_strdup_printf("%" G_GINT64_FORMAT, config->volume_max_mb) : NULL;
    g_autofree char *cgroup_root = sp_up_cgroup_root(up->state.path);
    add_option(arguments, "state", up->state.path);
    add_option(arguments, "listen", config->data);
    add_option(arguments, "server-url", up->conf.url);
    add_option(arguments, "data-url", up->conf.data_url);
    add_option(arguments, "secrets-fd", G_STRINGIFY(SP_DAEMON_SECRETS_FD));
    add_option(arguments, "parent-fd", G_STRINGIFY(SP_DAEMON_PARENT_FD));
    add_option(arguments, "cgroup-root", cgroup_root);
    add_option(arguments, "agent", config->agent);
    add_option(arguments, "guest-dir", config->guest_dir);
    add_option(arguments, "volume-max-mb", max_mb);
    add_option(arguments, "pool-min", config->pool.min);
    add_option(arguments, "pool-max", config->pool.max);
    add_option(arguments, "pool-memory-mb", config->pool.memory_mb);
    if (config->fake_driver)
        g_ptr_array_add(arguments, g_strdup("--fake-driver"));
    g_ptr_array_add(arguments, NULL);
    sp_supervisor_add(up->supervisor, "worker", (char **)arguments->pdata, secrets);
}

bool sp_up_start(struct sp_up *up, const struct sp_up_config *config, GError **error)
{
    g_unsetenv(SP_DATABASE_VARIABLE); /* the daemons are told in another way */
    if (!sp_state_dir_open(config->state, &up->state, error))
        return false;
    up->conf.url = url_of(config->api);
    up->conf.key = g_strdup(up->state.api_key);
    up->data_local_url = url_of(config->data);
    up->conf.data_url = g_strdup(config->data_url ? config->data_url : up->data_local_url);
    /* Daemons of an `up` that was killed may still be stopping, and have their ports until then. */
    int server_lock = sp_state_dir_lock_daemon(&up->state, "server", 20000, error);
    int worker_lock =
        server_lock < 0 ? -1 : sp_state_dir_lock_daemon(&up->state, "worker", 20000, error);
    if (server_lock >= 0)
        close(server_lock);
    if (worker_lock >= 0)
        close(worker_lock);
    if (server_lock < 0 || worker_lock < 0 || !check_address("api", config->api, error) ||
        !check_address("data", config->data, error) ||
        !sp_database_choose(up->state.path, config->database, &up->database, error)) {
        sp_up_end(up);
        return false;
    }
    up->started_ms = sp_time_now_ms();
    up->supervisor = sp_supervisor_new(&up->state, config->log_stderr);
    add_server(up, config);
    add_worker(up, config);
    return true;
}

static bool says_ok(const char *url, const char *path)
{
    struct sp_http_client *client = sp_http_client_new(url, NULL);
    struct sp_http_call call = {.method = "GET", .path = path, .timeout_ms = PROBE_TIMEOUT_MS};
    struct sp_http_answer answer = {0};
    bool ready = sp_http_call(client, &call, &answer, NULL) && answer.status == 200;
    sp_http_answer_clear(&answer);
    sp_http_client_free(client);
    return ready;
}

/* What the server knows of its worker. A lease of an earlier worker may still run: only one that
 * was renewed since `since_ms` (real time) counts. */
static enum {
    NO_WORKER,
    WORKER_TRYING,
    WORKER_READY
} ask_worker(struct sp_up *up, int64_t since_ms)
{
    struct sp_http_client *client = sp_http_client_new(up->conf.url, up->conf.key);
    g_autoptr(json_t) nodes =
        sp_http_call_json(client, "GET", "/v1/nodes", NULL, PROBE_TIMEOUT_MS, NULL, NULL);
    sp_http_client_free(client);
    json_t *node = json_array_get(json_object_get(nodes, "items"), 0);
    const char *lease = json_string_value(json_object_get(node, "lease_expires_at"));
    g_autoptr(GDateTime) expiry = lease ? g_date_time_new_from_iso8601(lease, NULL) : NULL;
    if (!expiry || g_date_time_to_unix(expiry) * 1000 + g_date_time_get_microsecond(expiry) / 1000 <
                       since_ms + NODE_LEASE_MS)
        return NO_WORKER;
    return sp_tiers_still_tried(nodes) ? WORKER_TRYING : WORKER_READY;
}

bool sp_up_wait_ready(struct sp_up *up, int64_t timeout_ms, GError **error)
{
    int64_t deadline_ms = sp_time_monotonic_ms() + timeout_ms;
    int64_t tiers_by_ms = sp_time_monotonic_ms() + TIERS_TIMEOUT_MS;
    bool server = false, worker = false, ready = false;
    while (!ready) {
        enum sp_supervisor_event event = sp_supervisor_turn(up->supervisor, POLL_MS);
        if (event == SP_SUPERVISOR_STOP) {
            g_set_error_literal(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "interrupted");
            return false;
        }
        if (event == SP_SUPERVISOR_STUCK) {
            g_autofree char *words = sp_supervisor_last_words(up->supervisor);
            g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION, "%s", words);
            return false;
        }
        if (sp_time_monotonic_ms() >= deadline_ms) {
            g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE,
                        "the %s did not become ready in %d s; see %s/log",
                        worker ? "server" : "worker", (int)(timeout_ms / 1000), up->state.path);
            return false;
        }
        worker = worker || says_ok(up->data_local_url, "/healthz");
        server = worker && (server || says_ok(up->conf.url, "/readyz"));
        int known = server ? ask_worker(up, up->started_ms) : NO_WORKER;
        ready = known == WORKER_READY ||
                (known == WORKER_TRYING && sp_time_monotonic_ms() >= tiers_by_ms);
    }
    sp_supervisor_all_ready(up->supervisor);
    return true;
}

bool sp_up_save_conf(const struct sp_up *up, GError **error)
{
    g_autofree char *path = sp_state_dir_file(&up->state, "client.conf");
    return sp_database_keep(up->state.path, up->database, error) &&
           sp_client_conf_save(path, &up->conf, error);
}

char *sp_up_cgroup_root(const char *state_path)
{
    char hash[SP_HASH_HEX];
    sp_secret_hash(state_path, hash);
    return g_strdup_printf("space-%.8s", hash);
}

int64_t sp_up_count_sandboxes(struct sp_up *up)
{
    struct sp_http_client *client = sp_http_client_new(up->conf.url, up->conf.key);
    int64_t n = 0;
    g_autofree char *cursor = NULL;
    do {
        g_autofree char *path = g_strdup_printf("/v1/sandboxes?limit=100%s%s",
                                                cursor ? "&cursor=" : "", cursor ? cursor : "");
        g_clear_pointer(&cursor, g_free);
        g_autoptr(json_t) page =
            sp_http_call_json(client, "GET", path, NULL, COUNT_TIMEOUT_MS, NULL, NULL);
        size_t i;
        json_t *item;
        json_array_foreach(json_object_get(page, "items"), i, item)
        {
            const char *state = json_string_value(json_object_get(item, "state"));
            n += g_strcmp0(state, "running") == 0 || g_strcmp0(state, "paused") == 0;
        }
        const char *next = json_string_value(json_object_get(page, "next_cursor"));
        cursor = next ? g_uri_escape_string(next, NULL, FALSE) : NULL;
        if (!page)
            n = -1;
    } while (cursor && n >= 0);
    sp_http_client_free(client);
    return n;
}

void sp_up_end(struct sp_up *up)
{
    if (up->supervisor)
        sp_supervisor_free(up->supervisor);
    g_free(up->data_local_url);
    g_free(up->database);
    sp_client_conf_clear(&up->conf);
    sp_state_dir_close(&up->state);
}
