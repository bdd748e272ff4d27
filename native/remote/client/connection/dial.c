#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "remote/client/connection/dial.h"

#include "remote/wire/tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* connect() with a time limit: a machine that is off answers nothing. */
static bool connect_within(int fd, const struct sockaddr *address, socklen_t bytes, int timeout_ms)
{
    if (connect(fd, address, bytes) == 0) return true;
    if (errno != EINPROGRESS) return false;
    struct pollfd p = {fd, POLLOUT, 0};
    int said, failed = 0;
    do
        said = poll(&p, 1, timeout_ms);
    while (said < 0 && errno == EINTR);
    socklen_t capacity = sizeof failed;
    if (said == 0) failed = ETIMEDOUT;
    if (said > 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &capacity) < 0) failed = errno;
    errno = failed;
    return said > 0 && !failed;
}

static bool host_port_split(const char *where, char *host, size_t capacity, const char **port)
{
    const char *colon = strrchr(where, ':');
    if (!colon || (size_t)(colon - where) >= capacity) return false;
    size_t length = (size_t)(colon - where);
    bool bracketed = length > 2 && where[0] == '[' && where[length - 1] == ']'; /* an IPv6 address */
    if (bracketed) {
        where++;
        length -= 2;
    }
    memcpy(host, where, length);
    host[length] = 0;
    *port = colon + 1;
    return true;
}

int cb_dial(const char *where, int timeout_ms, char *why, size_t capacity)
{
    char host[256];
    const char *port;
    if (!host_port_split(where, host, sizeof host, &port)) {
        snprintf(why, capacity, "%s is not HOST:PORT", where);
        return -1;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int failed = getaddrinfo(host, port, &hints, &found), fd = -1;
    if (failed) {
        snprintf(why, capacity, "%s: %s", where, gai_strerror(failed));
        return -1;
    }
    for (struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
        if (fd >= 0 && connect_within(fd, a->ai_addr, a->ai_addrlen, timeout_ms)) break;
        snprintf(why, capacity, "cannot reach %s: %s", where, strerror(errno));
        if (fd >= 0) close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    if (fd < 0) return -1;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    cb_tcp_prepare(fd);
    return fd;
}
