/* The hidden verbs: SPACE's own processes. Their options carry no secrets; those come by
 * descriptor. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/server_main.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/client_options.h"
#include "cli/daemon_start.h"
#include "cli/database.h"
#include "cli/output.h"
#include "cli/pool_options.h"
#include "cli/programs.h"
#include "cli/verbs.h"
#include "driver/launcher.h"
#include "node/worker.h"

struct daemon_options {
    struct sp_help_option help; /* first */
    bool fake_driver;
    char *state;
    char *listen;
    char *server_url;
    char *data_url;
    char *node;
    char *database;
    char *database_file;
    char *cgroup_root;
    char *agent;
    char *guest_dir;
    int64_t secrets_fd;
    int64_t parent_fd;
    int64_t uid;
    int64_t volume_max_mb;
    struct sp_pool_options pool;
};

#define OFFSET(member) offsetof(struct daemon_options, member)
#define OPTIONS_DAEMON                                                                             \
    {"state", 0, SP_OPTION_STRING, OFFSET(state), "DIR", "directory of its own state", 0},         \
        {"listen", 0, SP_OPTION_STRING, OFFSET(listen), "ADDRESS", "address to serve on", 0},      \
        {"secrets-fd",                                                                             \
         0,                                                                                        \
         SP_OPTION_INT,                                                                            \
         OFFSET(secrets_fd),                                                                       \
         "N",                                                                                      \
         "descriptor with the secrets as JSON",                                                    \
         3},                                                                                       \
        {"parent-fd",                                                                              \
         0,                                                                                        \
         SP_OPTION_INT,                                                                            \
         OFFSET(parent_fd),                                                                        \
         "N",                                                                                      \
         "pipe at whose end of file to stop",                                                      \
         3},                                                                                       \
        SP_OPTION_HELP

const struct sp_option sp_server_options[] = {
    {"uid", 0, SP_OPTION_INT, OFFSET(uid), "UID", "unprivileged uid and gid to become", 1},
    {"database", 0, SP_OPTION_STRING, OFFSET(database), "URL",
     "PostgreSQL (default: SQLite in DIR)", 0},
    {"database-file", 0, SP_OPTION_STRING, OFFSET(database_file), "FILE", "the same, from a file",
     0},
    OPTIONS_DAEMON,
    {0},
};
const size_t sp_server_options_bytes = sizeof(struct daemon_options);

const struct sp_option sp_worker_options[] = {
    {"server-url", 0, SP_OPTION_STRING, OFFSET(server_url), "URL", "the server", 0},
    {"data-url", 0, SP_OPTION_STRING, OFFSET(data_url), "URL", "how clients reach the data plane",
     0},
    {"node", 0, SP_OPTION_STRING, OFFSET(node), "NAME", "name of this node (default local)", 0},
    {"cgroup-root", 0, SP_OPTION_STRING, OFFSET(cgroup_root), "NAME",
     "control group of this installation", 0},
    {"agent", 0, SP_OPTION_STRING, OFFSET(agent), "FILE", "the static space-agent", 0},
    {"guest-dir", 0, SP_OPTION_STRING, OFFSET(guest_dir), "DIR", "kernel and modules of microVMs",
     0},
    {"volume-max-mb", 0, SP_OPTION_INT, OFFSET(volume_max_mb), "MB",
     "largest size of the data volume", 1},
    SP_OPTIONS_POOL(struct daemon_options, pool),
    {"fake-driver", 0, SP_OPTION_FLAG, OFFSET(fake_driver), NULL, "for tests: no real sandboxes",
     0},
    OPTIONS_DAEMON,
    {0},
};
const size_t sp_worker_options_bytes = sizeof(struct daemon_options);

const struct sp_option sp_launcher_options[] = {SP_OPTION_HELP, {0}};
const size_t sp_launcher_options_bytes = sizeof(struct sp_help_option);

static bool require(const struct daemon_options *o, GError **error)
{
    if (o->state && o->listen && o->secrets_fd)
        return true;
    g_set_error_literal(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                        "--state, --listen and --secrets-fd are needed (`space up` starts this)");
    return false;
}

static const char *secret(json_t *secrets, const char *name, GError **error)
{
    const char *value = json_string_value(json_object_get(secrets, name));
    if (!value)
        g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "the secrets lack \"%s\"", name);
    return value;
}

/* An error before the daemon runs goes to the log, as all that it says. */
static int refuse(const GError *error)
{
    sp_log_error("cannot start", error, NULL);
    return SP_EXIT_PLATFORM;
}

/* The options' word, or that of the secrets, or the environment's, or SQLite in the state
 * directory. */
static char *server_database(const struct daemon_options *o, json_t *secrets, const char *state,
                             GError **error)
{
    char *asked = NULL;
    if (!sp_database_asked(o->database, o->database_file, &asked, error))
        return NULL;
    const char *given = json_string_value(json_object_get(secrets, "database"));
    if (given && !o->database && !o->database_file) {
        g_free(asked);
        asked = g_strdup(given);
    }
    if (asked && strcmp(asked, SP_DATABASE_SQLITE) != 0)
        return asked;
    g_free(asked);
    return g_build_filename(state, "space.db", NULL);
}

int sp_server_verb(const struct sp_invocation *invocation)
{
    const struct daemon_options *o = invocation->options;
    g_autoptr(GError) error = NULL;
    sp_log_init("server", SP_LOG_INFO);
    g_autoptr(json_t) secrets =
        require(o, &error) ? sp_daemon_read_secrets((int)o->secrets_fd, &error) : NULL;
    const char *node_key = secrets ? secret(secrets, "node_key", &error) : NULL;
    const char *key_hash = node_key ? secret(secrets, "api_key_hash", &error) : NULL;
    if (!key_hash)
        return refuse(error);
    sp_daemon_keep_descriptors();
    g_autofree char *state =
        o->uid ? sp_daemon_reachable(o->state, (uid_t)o->uid, &error) : g_strdup(o->state);
    /* a file with the URL may be for us alone: before privileges go */
    g_autofree char *database = state ? server_database(o, secrets, state, &error) : NULL;
    if (!database || (o->uid && !sp_daemon_drop_privileges((uid_t)o->uid, &error)))
        return refuse(error);
    if (o->parent_fd)
        sp_daemon_watch_parent((int)o->parent_fd);
    struct sp_server_config config = {
        .address = o->listen, .database = database, .node_key = node_key, .api_key_hash = key_hash};
    return sp_server_main(&config);
}

int sp_worker_verb(const struct sp_invocation *invocation)
{
    const struct daemon_options *o = invocation->options;
    g_autoptr(GError) error = NULL;
    sp_log_init("worker", SP_LOG_INFO);
    g_autoptr(json_t) secrets =
        require(o, &error) ? sp_daemon_read_secrets((int)o->secrets_fd, &error) : NULL;
    const char *node_key = secrets ? secret(secrets, "node_key", &error) : NULL;
    if (!node_key)
        return refuse(error);
    struct sp_pool_numbers pool = {0};
    if (!sp_pool_options_read(&o->pool, &pool, &error))
        return refuse(error);
    if (!o->server_url) {
        g_set_error_literal(&error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "--server-url is needed");
        return refuse(error);
    }
    sp_daemon_keep_descriptors();
    if (o->parent_fd)
        sp_daemon_watch_parent((int)o->parent_fd);
    g_autofree char *self = g_file_read_link("/proc/self/exe", NULL);
    g_autofree char *agent = o->agent ? g_strdup(o->agent) : sp_program_agent();
    g_autofree char *guest_dir = o->guest_dir ? g_strdup(o->guest_dir) : sp_program_guest_dir();
    struct sp_worker_config config = {.state_dir = o->state,
                                      .node_name = o->node ? o->node : "local",
                                      .data_address = o->listen,
                                      .data_url = o->data_url,
                                      .server_url = o->server_url,
                                      .node_key = node_key,
                                      .agent_path = agent,
                                      .guest_dir = guest_dir,
                                      .cgroup_root = o->cgroup_root,
                                      .self_exe = self ? self : "/proc/self/exe",
                                      .volume_max_bytes = (uint64_t)o->volume_max_mb << 20,
                                      .pool_min = pool.min,
                                      .pool_max = pool.max,
                                      .pool_memory_mb = pool.memory_mb,
                                      .fake_driver = o->fake_driver};
    return sp_worker_main(&config);
}

int sp_launcher_verb(const struct sp_invocation *invocation)
{
    return sp_launcher_main(SP_LAUNCHER_FD);
}
