#include "remote/client/connection/transport.h"

#include "remote/client/connection/dial.h"
#include "remote/client/connection/lease.h"
#include "remote/wire/greeting.h"
#include "remote/wire/resume.h"
#include "remote/wire/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CB_TRANSPORT_FD 700

/* Send the greeting, with the memory of the ring (-1: none). */
static bool greeting_send(int fd, int memory)
{
    struct cb_greeting g = {.magic = CB_GREETING_MAGIC,
                            .version = CB_GREETING_VERSION,
                            .kind = CB_GREETING_LOCAL,
                            .flags = memory < 0 ? 0 : CB_GREETING_RING};
    union {
        struct cmsghdr header;
        char capacity[CMSG_SPACE(sizeof memory)];
    } control = {.header = {CMSG_LEN(sizeof memory), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec part = {&g, sizeof g};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (memory >= 0) {
        memcpy(CMSG_DATA(&control.header), &memory, sizeof memory);
        m.msg_control = &control;
        m.msg_controllen = sizeof control;
    }
    ssize_t sent;
    do
        sent = sendmsg(fd, &m, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == sizeof g; /* nothing precedes it in the socket */
}

/* Move a descriptor above those that programs close, or arrange, without having opened them. */
static int descriptor_move_up(int fd)
{
    int high = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, CB_TRANSPORT_FD) : -1;
    if (high < 0) return fd; /* the descriptor limit may be low */
    close(fd);
    return high;
}

static bool unix_open(struct cb_transport *l, const char *path, bool ring, char *why, size_t capacity)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int memory = -1;
    if (strlen(path) >= sizeof address.sun_path) {
        snprintf(why, capacity, "the path of the socket is longer than %zu bytes",
                 sizeof address.sun_path - 1);
        return false;
    }
    strcpy(address.sun_path, path);
    int fd = descriptor_move_up(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        snprintf(why, capacity, "cannot reach %s: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        return false;
    }
    if (ring) l->stream = cb_ring_make(fd, &memory);
    if (!l->stream.kind) l->stream = cb_stream_plain(fd);
    bool greeted = greeting_send(fd, memory);
    if (!greeted) snprintf(why, capacity, "cannot greet %s: %s", path, strerror(errno));
    if (memory >= 0) close(memory);
    if (!greeted) cb_transport_close(l);
    return greeted;
}

bool cb_transport_open(struct cb_transport *l, const char *where, char *why, size_t capacity)
{
    l->stream.kind = NULL;
    if (strncmp(where, "unix:", 5) == 0) return unix_open(l, where + 5, true, why, capacity);
    if (strncmp(where, "socket:", 7) == 0) return unix_open(l, where + 7, false, why, capacity);
    if (strncmp(where, "file:", 5) == 0) {
        l->stream = cb_lease_open(where + 5, why, capacity);
        return l->stream.kind;
    }
    if (strncmp(where, "tcp:", 4) == 0) {
        int fd = descriptor_move_up(cb_dial(where + 4, CB_DIAL_MS, why, capacity));
        if (fd >= 0) l->stream = cb_stream_plain(fd);
        return fd >= 0;
    }
    snprintf(why, capacity, "CALABASH_REMOTE is %s, none of unix:PATH, file:PATH and tcp:HOST:PORT", where);
    return false;
}

void cb_transport_close(struct cb_transport *l)
{
    if (l->stream.kind) l->stream.kind->close(&l->stream);
    l->stream.kind = NULL;
}

void cb_transport_leave(struct cb_transport *l)
{
    if (cb_resume_is(&l->stream)) cb_resume_leave(&l->stream);
}

bool cb_transport_send(struct cb_transport *l, struct iovec *parts, int count)
{
    return l->stream.kind && l->stream.kind->send(&l->stream, parts, count);
}

size_t cb_transport_receive(struct cb_transport *l, void *into, size_t capacity, bool wait, bool *gone)
{
    *gone = true;
    return l->stream.kind ? l->stream.kind->receive(&l->stream, into, capacity, wait, gone) : 0;
}

const char *cb_transport_reason(const struct cb_transport *l)
{
    if (l->stream.kind && cb_ring_is_silent(&l->stream)) return ": its worker has said nothing for too long";
    switch (l->stream.kind ? cb_ring_refusal(&l->stream) : 0) {
    case CB_GREETING_OTHER_VERSION:
        return ": the server is of another version\nhint: install the same version on both";
    case CB_GREETING_FULL:
        return ": the lease has as many sessions as it may have\nhint: end one of its programs";
    case CB_GREETING_FAILED:
        return ": the server could not start a worker";
    case 0:
        return "";
    default:
        return ": the server has refused it";
    }
}
