#include "http/internal.h"

#include <sys/socket.h>
#include <unistd.h>

#include "base/time.h"

/* For the head of a request, and for the answer's buffers once the head is done with. */
#define CONNECTION_MEMORY_BYTES ((size_t)64 * 1024)
#define THREAD_STACK_BYTES ((size_t)1024 * 1024)

static int64_t or_default(int64_t value, int64_t fallback)
{
    return value > 0 ? value : fallback;
}

static struct MHD_Daemon *daemon_start(struct sp_http_server *server, unsigned max_connections)
{
    return MHD_start_daemon(
        MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL | MHD_USE_INTERNAL_POLLING_THREAD |
            MHD_USE_ITC,
        0, NULL, NULL, sp_http_on_access, server, MHD_OPTION_LISTEN_SOCKET, server->listen_fd,
        MHD_OPTION_CONNECTION_LIMIT, max_connections, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)((server->idle_timeout_ms + 999) / 1000), MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        CONNECTION_MEMORY_BYTES, MHD_OPTION_THREAD_STACK_SIZE, THREAD_STACK_BYTES,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_URI_LOG_CALLBACK, sp_http_on_target, server,
        MHD_OPTION_NOTIFY_COMPLETED, sp_http_on_completed, server, MHD_OPTION_NOTIFY_CONNECTION,
        sp_http_on_connection, server, MHD_OPTION_END);
}

struct sp_http_server *sp_http_server_start(const struct sp_http_server_config *config,
                                            GError **error)
{
    char *address = NULL;
    const int fd = sp_http_listen(config->address, &address, error);
    if (fd < 0)
        return NULL;
    struct sp_http_server *server = g_new0(struct sp_http_server, 1);
    server->listen_fd = fd;
    server->address = address;
    server->user = config->user;
    server->head_timeout_ms = or_default(config->head_timeout_ms, 10 * 1000);
    server->idle_timeout_ms = or_default(config->idle_timeout_ms, 75 * 1000);
    server->body_timeout_ms = or_default(config->body_timeout_ms, 120 * 1000);
    sp_http_routes_compile(&server->routes, config->routes);
    sp_http_deadlines_start(&server->deadlines, CLAMP(server->head_timeout_ms / 10, 10, 500));
    server->daemon = daemon_start(server, config->max_connections ? config->max_connections : 1024);
    if (!server->daemon) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "cannot start the HTTP server on %s",
                    address);
        sp_http_deadlines_stop(&server->deadlines);
        sp_http_routes_clear(&server->routes);
        close(fd);
        g_free(address);
        g_free(server);
        return NULL;
    }
    return server;
}

const char *sp_http_server_address(const struct sp_http_server *server)
{
    return server->address;
}

bool sp_http_server_stopping(const struct sp_http_server *server)
{
    return atomic_load(&server->stopping);
}

void sp_http_server_stop(struct sp_http_server *server, unsigned grace_ms)
{
    if (!server)
        return;
    const int64_t deadline_ms = sp_time_monotonic_ms() + grace_ms;
    atomic_store(&server->stopping, true);
    MHD_quiesce_daemon(server->daemon);
    /* Refuses connections from now on; the number stays taken until libmicrohttpd is done with it.
     */
    shutdown(server->listen_fd, SHUT_RDWR);
    sp_http_deadlines_shutdown(&server->deadlines, true);
    if (!sp_http_deadlines_wait_empty(&server->deadlines, deadline_ms))
        sp_http_deadlines_shutdown(&server->deadlines, false);
    /* Joins the threads of the connections, so it waits for the handlers that still run. */
    MHD_stop_daemon(server->daemon);
    close(server->listen_fd);
    sp_http_deadlines_stop(&server->deadlines);
    sp_http_routes_clear(&server->routes);
    g_free(server->address);
    g_free(server);
}
