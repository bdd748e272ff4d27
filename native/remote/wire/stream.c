#include "remote/wire/stream.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

static bool socket_send(struct cb_stream *s, struct iovec *parts, int count)
{
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    while (message.msg_iovlen) {
        ssize_t sent = sendmsg(s->fd, &message, MSG_NOSIGNAL);
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

static size_t socket_receive(struct cb_stream *s, void *into, size_t capacity, bool wait, bool *gone)
{
    for (;;) {
        ssize_t got = recv(s->fd, into, capacity, wait ? 0 : MSG_DONTWAIT);
        if (got > 0) return (size_t)got;
        if (got < 0 && errno == EINTR) continue;
        *gone = got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
        return 0;
    }
}

static void socket_close(struct cb_stream *s)
{
    close(s->fd);
}

struct cb_stream cb_stream_plain(int fd)
{
    static const struct cb_stream_kind plain = {socket_send, socket_receive, socket_close, NULL};
    return (struct cb_stream){&plain, fd, NULL};
}
