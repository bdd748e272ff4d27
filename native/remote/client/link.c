#include "remote/client/link.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static bool open_unix(struct cb_link *l, const char *path, char *why, size_t room)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        snprintf(why, room, "the path of the socket is longer than %zu bytes", sizeof address.sun_path - 1);
        return false;
    }
    strcpy(address.sun_path, path);
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (l->fd >= 0 && connect(l->fd, (struct sockaddr *)&address, sizeof address) == 0) return true;
    snprintf(why, room, "cannot reach %s: %s", path, strerror(errno));
    cb_link_close(l);
    return false;
}

static bool open_tcp(struct cb_link *l, const char *where, char *why, size_t room)
{
    char host[256];
    const char *colon = strrchr(where, ':');
    if (!colon || (size_t)(colon - where) >= sizeof host) {
        snprintf(why, room, "%s is not HOST:PORT", where);
        return false;
    }
    memcpy(host, where, (size_t)(colon - where));
    host[colon - where] = 0;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int failed = getaddrinfo(host, colon + 1, &hints, &found);
    if (failed) {
        snprintf(why, room, "%s: %s", where, gai_strerror(failed));
        return false;
    }
    for (struct addrinfo *a = found; a && l->fd < 0; a = a->ai_next) {
        l->fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (l->fd >= 0 && connect(l->fd, a->ai_addr, a->ai_addrlen) == 0) break;
        snprintf(why, room, "cannot reach %s: %s", where, strerror(errno));
        cb_link_close(l);
    }
    freeaddrinfo(found);
    if (l->fd < 0) return false;
    int one = 1;
    setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return true;
}

bool cb_link_open(struct cb_link *l, const char *where, char *why, size_t room)
{
    l->fd = -1;
    if (strncmp(where, "unix:", 5) == 0) return open_unix(l, where + 5, why, room);
    if (strncmp(where, "tcp:", 4) == 0) return open_tcp(l, where + 4, why, room);
    snprintf(why, room, "%s is neither unix:PATH nor tcp:HOST:PORT", where);
    return false;
}

void cb_link_close(struct cb_link *l)
{
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
}

bool cb_link_send(struct cb_link *l, struct iovec *parts, int count)
{
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    while (message.msg_iovlen) {
        ssize_t sent = sendmsg(l->fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return false;
        for (; message.msg_iovlen && (size_t)sent >= message.msg_iov->iov_len;
             message.msg_iov++, message.msg_iovlen--)
            sent -= (ssize_t)message.msg_iov->iov_len;
        if (message.msg_iovlen) {
            message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + sent;
            message.msg_iov->iov_len -= (size_t)sent;
        }
    }
    return true;
}

size_t cb_link_receive(struct cb_link *l, void *into, size_t room, bool wait, bool *gone)
{
    for (;;) {
        ssize_t got = recv(l->fd, into, room, wait ? 0 : MSG_DONTWAIT);
        if (got > 0) return (size_t)got;
        if (got < 0 && errno == EINTR) continue;
        *gone = got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
        return 0;
    }
}
