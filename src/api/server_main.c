#include "api/server_main.h"

#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "api/api.h"
#include "api/worker_client.h"
#include "base/error.h"
#include "base/log.h"
#include "control/controller.h"
#include "store/where.h"

#define STOP_GRACE_MS 1500

static bool open_store(struct sp_api *api, const struct sp_server_config *config, GError **error)
{
    g_autofree char *shown = sp_where_describe(config->database);
    sp_log(SP_LOG_INFO, "opening the database", "database", shown, NULL);
    g_autofree char *dir = g_path_get_dirname(config->database);
    if (!sp_where_is_url(config->database) && g_mkdir_with_parents(dir, 0700) < 0) {
        sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "%s", dir);
        return false;
    }
    api->store = sp_store_open(config->database, error);
    return api->store && (!config->api_key_hash ||
                          sp_store_key_set_admin(api->store, config->api_key_hash, error));
}

/* Descriptors 0 to 2 must be in use: when SQLite is given one of them for the database it closes it
 * again, and by that POSIX rule drops every lock that the process has on the file. Another process
 * (a backup, a shell) then believes that nobody uses it, and removes its log. */
static void take_standard_fds(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0)
            g_error("/dev/null: %s", g_strerror(errno));
    }
}

/* Closes it; a standard one becomes /dev/null in one step, as other threads open files. */
static void let_go(int fd)
{
    int null = fd <= STDERR_FILENO ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
    if (null >= 0) {
        dup2(null, fd);
        close(null);
    } else if (fd > STDERR_FILENO) {
        close(fd);
    }
}

static void announce(const struct sp_server_config *config, const char *address)
{
    sp_log(SP_LOG_INFO, "listening", "address", address, NULL);
    if (config->ready_fd <= 0)
        return;
    g_autofree char *line = g_strconcat(address, "\n", NULL);
    ssize_t n;
    do
        n = write(config->ready_fd, line, strlen(line));
    while (n < 0 && errno == EINTR);
    let_go(config->ready_fd);
}

/* Blocked in this thread before any other is made, so in all: the signals are read, never
 * delivered. */
static int block_signals(GError **error)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    int fd = signalfd(-1, &set, SFD_CLOEXEC);
    if (fd < 0)
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "signalfd");
    return fd;
}

static void wait_for_signal(int fd)
{
    struct signalfd_siginfo info;
    while (read(fd, &info, sizeof info) < 0 && errno == EINTR)
        ;
    sp_log(SP_LOG_INFO, "stopping", NULL);
}

static bool serve(struct sp_api *api, const struct sp_server_config *config, int signal_fd,
                  GError **error)
{
    if (!open_store(api, config, error))
        return false;
    struct sp_http_server_config http = {
        .address = config->address, .routes = sp_api_http_routes, .user = api};
    struct sp_controller *controller = sp_controller_start(api->store);
    struct sp_http_server *server = sp_http_server_start(&http, error);
    if (server) {
        announce(config, sp_http_server_address(server));
        wait_for_signal(signal_fd);
    }
    g_atomic_int_set(&api->stopping, 1);
    sp_store_wake_all(api->store);
    if (server)
        sp_http_server_stop(server, STOP_GRACE_MS);
    sp_controller_stop(controller);
    return server != NULL;
}

int sp_server_main(const struct sp_server_config *config)
{
    g_autoptr(GError) error = NULL;
    take_standard_fds();
    signal(SIGPIPE, SIG_IGN);
    int signal_fd = block_signals(&error);
    struct sp_api api = {.metrics = sp_metrics_new(), .workers = sp_workers_new(config->node_key)};
    sp_secret_hash(config->node_key, api.node_key_hash);
    bool ok = signal_fd >= 0 && serve(&api, config, signal_fd, &error);
    if (!ok)
        sp_log_error("the server cannot run", error, NULL);
    sp_store_close(api.store);
    sp_workers_free(api.workers);
    sp_metrics_free(api.metrics);
    if (signal_fd >= 0)
        close(signal_fd);
    return ok ? 0 : 1;
}
