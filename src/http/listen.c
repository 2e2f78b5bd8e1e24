#include "http/internal.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SEND_BUFFER_BYTES (256 * 1024)

/* "host:port" or "[host]:port", both parts numeric. */
static struct addrinfo *address_parse(const char *address, GError **error)
{
    const char *colon = strrchr(address, ':');
    const char *host = address;
    size_t host_len = colon ? (size_t)(colon - address) : 0;
    if (host_len >= 2 && host[0] == '[' && host[host_len - 1] == ']') {
        host++;
        host_len -= 2;
    } else if (memchr(host, ':', host_len)) {
        host_len = 0; /* IPv6 without brackets */
    }
    struct addrinfo *found = NULL;
    /* getaddrinfo(3) of glibc takes 99999 and the empty text for a port. */
    if (host_len > 0 && g_ascii_string_to_unsigned(colon + 1, 10, 0, 65535, NULL, NULL)) {
        g_autofree char *name = g_strndup(host, host_len);
        const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                       .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
        if (getaddrinfo(name, colon + 1, &hints, &found) != 0)
            found = NULL;
    }
    if (!found)
        g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                    "\"%s\" is no address of the form 127.0.0.1:7070 or [::1]:7070", address);
    return found;
}

static char *bound_address(int fd)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (getsockname(fd, (struct sockaddr *)&ss, &len) < 0 ||
        getnameinfo((struct sockaddr *)&ss, len, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return NULL;
    return g_strdup_printf(strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

int sp_http_listen(const char *address, char **ret_address, GError **error)
{
    struct addrinfo *info = address_parse(address, error);
    if (!info)
        return -1;
    const int on = 1, send_buffer = SEND_BUFFER_BYTES;
    char *bound = NULL;
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        goto failed;
    /* Accepted sockets inherit all of these (tcp(7)). */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof(send_buffer));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (info->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
    if (bind(fd, info->ai_addr, info->ai_addrlen) < 0 || listen(fd, 1024) < 0)
        goto failed;
    bound = bound_address(fd);
    if (!bound)
        goto failed;
    freeaddrinfo(info);
    *ret_address = bound;
    return fd;

failed:
    sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "cannot listen on %s", address);
    if (fd >= 0)
        close(fd);
    freeaddrinfo(info);
    return -1;
}
