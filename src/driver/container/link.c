/* The agent's socket. */
#include "driver/container/container.h"
#include "os/endpoint.h"

#define CONNECT_MS 5000

int sp_container_listen(const char *run_dir, GError **error)
{
    return sp_endpoint_listen(run_dir, SP_CONTAINER_SOCKET, error);
}

int sp_container_connect(struct sp_instance *instance, GError **error)
{
    const struct sp_container *container = (struct sp_container *)instance;
    return sp_endpoint_connect(container->run_dir, SP_CONTAINER_SOCKET, CONNECT_MS, error);
}
