/* Making the parts of a worker, running until a signal, taking them apart. */
#include "node/worker.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/time.h"
#include "disk/saved.h"
#include "disk/template_build.h"
#include "disk/volume.h"
#include "driver/fake/fake.h"
#include "driver/launcher.h"
#include "http/server.h"
#include "node/activity.h"
#include "node/builds.h"
#include "node/drivers.h"
#include "node/node.h"
#include "node/outbox.h"
#include "node/pool.h"
#include "node/reconcile.h"
#include "node/routes.h"
#include "node/session_sweep.h"
#include "node/sessions.h"
#include "node/snapshots.h"
#include "node/table.h"
#include "node/upstream.h"

#define HTTP_GRACE_MS 300
#define ACTION_GRACE_MS 500
#define POOL_GRACE_MS 4000
/* Stopping takes less than this in any case: what is still under way then is as after a crash. */
#define STOP_LIMIT_S 6
#define MAX_CONNECTIONS 2048

struct parts {
    struct sp_node node;
    struct sp_launcher *launcher;
    struct sp_http_server *server;
    struct sp_session_sweep *sweep;
    struct sp_activity *activity;
    struct sp_driver_env env; /* the drivers keep a pointer to it */
};

static const struct sp_outbox_ops sandbox_reports = {
    .send = (bool (*)(void *, json_t *, GError **))sp_upstream_observed,
    .taken = sp_reconcile_taken,
};
static const struct sp_outbox_ops session_reports = {
    .send = (bool (*)(void *, json_t *, GError **))sp_upstream_sessions,
    .taken = sp_sessions_taken,
};

static const struct sp_outbox_ops snapshot_reports = {
    .send = (bool (*)(void *, json_t *, GError **))sp_upstream_snapshots,
};

static bool make_dirs(struct sp_node *node, GError **error)
{
    const char *state = node->config->state_dir;
    g_autofree char *run = g_build_filename(state, "run", NULL);
    node->sandbox_root = g_build_filename(run, "sandboxes", NULL);
    const char *const dirs[] = {state, run, node->sandbox_root};
    for (size_t i = 0; i < G_N_ELEMENTS(dirs); i++) {
        if (mkdir(dirs[i], 0711) < 0 && errno != EEXIST) {
            sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "mkdir %s", dirs[i]);
            return false;
        }
    }
    return true;
}

/* A sandbox takes five descriptors, a connection one. After the launcher has been started: programs
 * in sandboxes keep the usual limit. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* "space-" and eight digits of the state directory's hash: two installations do not meet. */
static char *default_cgroup_root(const char *state_dir)
{
    char hash[SP_HASH_HEX];
    g_autofree char *path = g_canonicalize_filename(state_dir, "/");
    sp_secret_hash(path, hash);
    hash[8] = '\0';
    return g_strconcat("space-", hash, NULL);
}

static void add_driver(struct sp_node *node, const char *tier, struct sp_driver *driver,
                       GError *error)
{
    if (driver) {
        sp_drivers_add(node->drivers, driver);
        return;
    }
    sp_log_error("a tier cannot be offered", error, "tier", tier, NULL);
    sp_drivers_add_broken(node->drivers, tier, error ? error->message : "unknown reason");
    g_clear_error(&error);
}

static void make_drivers(struct parts *parts)
{
    struct sp_node *node = &parts->node;
    const struct sp_worker_config *config = node->config;
    GError *error = NULL;
    parts->env = (struct sp_driver_env){
        .state_dir = config->state_dir,
        .cgroup_root = parts->node.cgroup_root,
        .agent_path = config->agent_path,
        .guest_dir = config->guest_dir,
        .launcher = parts->launcher,
        .volume = node->volume,
    };
    node->drivers = sp_drivers_new();
    if (config->fake_driver) {
        add_driver(node, "container", sp_driver_fake_new(&parts->env, &error), error);
        return;
    }
    struct sp_driver *container = sp_driver_container_new(&parts->env, &error);
    add_driver(node, "container", container, g_steal_pointer(&error));
    struct sp_driver *microvm = sp_driver_microvm_new(&parts->env, &error);
    add_driver(node, "microvm", microvm, g_steal_pointer(&error));
}

static void on_probed(void *user)
{
    struct sp_node *node = user;
    if (node->reconciler)
        sp_reconciler_heartbeat(node->reconciler);
}

static bool open_volume(struct parts *parts, GError **error)
{
    const struct sp_worker_config *config = parts->node.config;
    parts->node.volume = sp_volume_open(config->state_dir, config->volume_max_bytes, error);
    if (!parts->node.volume)
        return false;
    g_autoptr(GError) cause = NULL;
    sp_saved_clean(parts->node.volume);
    if (!sp_template_clean(parts->node.volume, &cause))
        sp_log_error("left-overs of earlier template builds stay", cause, NULL);
    return true;
}

static bool start_listener(struct parts *parts, GError **error)
{
    struct sp_node *node = &parts->node;
    struct sp_http_server_config config = {
        .address = node->config->data_address,
        .routes = sp_node_routes,
        .user = node,
        .max_connections = MAX_CONNECTIONS,
    };
    parts->server = sp_http_server_start(&config, error);
    if (!parts->server)
        return false;
    node->data_url = node->config->data_url
                         ? g_strdup(node->config->data_url)
                         : g_strconcat("http://", sp_http_server_address(parts->server), NULL);
    return true;
}

static bool start(struct parts *parts, GError **error)
{
    struct sp_node *node = &parts->node;
    const struct sp_worker_config *config = node->config;
    sp_id_new("inst", node->instance);
    sp_secret_hash(config->node_key, node->node_key_hash);
    if (!make_dirs(node, error))
        return false;
    /* Before there are threads. */
    if (!config->fake_driver && !(parts->launcher = sp_launcher_start(config->self_exe, error)))
        return false;
    raise_descriptor_limit();
    if (!open_volume(parts, error))
        return false;
    parts->node.cgroup_root = config->cgroup_root ? g_strdup(config->cgroup_root)
                                                  : default_cgroup_root(config->state_dir);
    node->server = sp_http_client_new(config->server_url, config->node_key);
    node->table = sp_table_new();
    node->sessions = sp_sessions_new(node);
    node->session_reports = sp_outbox_new("sessions", &session_reports, node);
    node->snapshots = sp_snapshots_new(node);
    node->snapshot_reports = sp_outbox_new("snapshots", &snapshot_reports, node);
    node->sandbox_reports = sp_outbox_new("observed", &sandbox_reports, node);
    node->builds = sp_builds_new(node);
    node->reconciler = sp_reconciler_new(node);
    make_drivers(parts);
    sp_drivers_probe(node->drivers, on_probed, node);
    node->pool = sp_pool_new(node);
    sp_reconciler_scan(node->reconciler);
    if (!start_listener(parts, error))
        return false;
    parts->sweep = sp_session_sweep_start(node);
    parts->activity = sp_activity_start(node);
    sp_pool_start(node->pool);
    sp_reconciler_start(node->reconciler);
    sp_log(SP_LOG_INFO, "worker is up", "node", config->node_name, "data_url", node->data_url,
           NULL);
    return true;
}

/* Streams end, and nothing waits for an agent any more; the sandboxes go on. */
static void stop_links(struct sp_node *node)
{
    g_autoptr(GPtrArray) all = sp_table_all(node->table);
    for (guint i = 0; i < all->len; i++) {
        struct sp_sandbox *sandbox = all->pdata[i];
        g_mutex_lock(&node->table->lock);
        struct sp_link *link = sandbox->link ? sp_link_ref(sandbox->link) : NULL;
        g_mutex_unlock(&node->table->lock);
        if (link)
            sp_link_stop(link, NULL);
        sp_link_unref(link);
    }
}

static void free_sandboxes(struct sp_node *node)
{
    g_autoptr(GPtrArray) all = sp_table_all(node->table);
    for (guint i = 0; i < all->len; i++) {
        struct sp_sandbox *sandbox = all->pdata[i];
        if (sandbox->instance)
            sandbox->instance->driver->ops->instance_free(sandbox->instance);
        sandbox->instance = NULL;
    }
}

/* Ends the process when stopping takes too long: a hung server, a driver at work. */
static void *limit_stop(void *data)
{
    g_usleep(STOP_LIMIT_S * G_USEC_PER_SEC - 200000);
    sp_log(SP_LOG_WARNING, "stopping takes too long: leaving work under way to the next worker",
           NULL);
    _exit(0);
}

static void stop(struct parts *parts)
{
    struct sp_node *node = &parts->node;
    g_atomic_int_set(&node->stopping, 1);
    g_thread_unref(g_thread_new("stop", limit_stop, NULL));
    stop_links(node);
    sp_http_server_stop(parts->server, HTTP_GRACE_MS);
    bool idle = sp_reconciler_stop(node->reconciler, ACTION_GRACE_MS);
    sp_session_sweep_stop(parts->sweep);
    sp_activity_stop(parts->activity);
    idle = sp_snapshots_stop(node->snapshots, ACTION_GRACE_MS) && idle;
    idle = sp_builds_stop(node->builds, ACTION_GRACE_MS) && idle;
    idle = sp_pool_stop(node->pool, POOL_GRACE_MS) && idle;
    sp_outbox_free(node->sandbox_reports);
    sp_outbox_free(node->session_reports);
    sp_outbox_free(node->snapshot_reports);
    if (!idle || !sp_drivers_wait_probed(node->drivers, 0)) {
        sp_log(SP_LOG_INFO, "worker stops with work under way; the next one takes it up", NULL);
        _exit(0);
    }
    free_sandboxes(node);
    sp_pool_free(node->pool);
    sp_drivers_free(node->drivers);
    sp_reconciler_free(node->reconciler);
    sp_builds_free(node->builds);
    sp_snapshots_free(node->snapshots);
    sp_sessions_free(node->sessions);
    sp_table_free(node->table);
    sp_http_client_free(node->server);
    sp_volume_close(node->volume);
    sp_launcher_stop(parts->launcher);
    g_free(node->data_url);
    g_free(node->sandbox_root);
    g_free(parts->node.cgroup_root);
    sp_log(SP_LOG_INFO, "worker has stopped", NULL);
}

int sp_worker_main(const struct sp_worker_config *config)
{
    static struct parts parts; /* threads that outlive a hasty end may still look at it */
    g_autoptr(GError) error = NULL;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* no core of a process that knows the node key */
    parts.node.config = config;
    if (!start(&parts, &error)) {
        sp_log_error("the worker cannot start", error, NULL);
        _exit(1); /* threads may run already; what they have begun is as after a crash */
    }
    int number;
    sigwait(&signals, &number);
    sp_log(SP_LOG_INFO, "worker is stopping", NULL);
    stop(&parts);
    return 0;
}
