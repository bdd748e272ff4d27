#include "remote/worker/greeting.h"

#include "remote/wire/ring.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Take the descriptor. There is space for one; the kernel closes any others and reports it. */
static bool descriptor_take(struct cb_connecting *g, struct msghdr *m)
{
    bool good = !(m->msg_flags & MSG_CTRUNC);
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        int fd;
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof fd))
            return false;
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
        good = good && g->passed < 0;
        if (g->passed >= 0) close(g->passed);
        g->passed = fd;
    }
    return good;
}

static bool bytes_are_zero(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i]) return false;
    }
    return true;
}

static enum cb_greeting_status greeting_check(const struct cb_connecting *g)
{
    const struct cb_greeting *m = &g->greeting;
    if (m->magic != CB_GREETING_MAGIC) return CB_GREETING_MALFORMED;
    if (m->version != CB_GREETING_VERSION) return CB_GREETING_OTHER_VERSION;
    if (m->kind == CB_GREETING_HANDOVER)
        return m->flags == 0 && g->passed >= 0 ? CB_GREETED : CB_GREETING_MALFORMED;
    bool ring = m->flags == CB_GREETING_RING;
    if (m->kind != CB_GREETING_LOCAL || (m->flags && !ring) || ring != (g->passed >= 0) ||
        !bytes_are_zero(m->session, sizeof m->session) || !bytes_are_zero(m->key, sizeof m->key))
        return CB_GREETING_MALFORMED;
    return CB_GREETED;
}

enum cb_greeting_progress cb_greeting_take(struct cb_connecting *g, enum cb_greeting_status *why)
{
    union {
        struct cmsghdr header;
        char capacity[CMSG_SPACE(sizeof(int))];
    } control;
    *why = CB_GREETING_MALFORMED;
    while (g->got < sizeof g->greeting) {
        struct iovec part = {(char *)&g->greeting + g->got, sizeof g->greeting - g->got};
        struct msghdr m = {.msg_iov = &part,
                           .msg_iovlen = 1,
                           .msg_control = &control,
                           .msg_controllen = CMSG_LEN(sizeof(int))};
        ssize_t got = recvmsg(g->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return CB_GREETING_MORE;
        if (got <= 0 || !descriptor_take(g, &m)) return CB_GREETING_LEFT;
        g->got += (size_t)got;
    }
    *why = greeting_check(g);
    return *why == CB_GREETED ? CB_GREETING_WHOLE : CB_GREETING_LEFT;
}

bool cb_greeting_await(struct cb_connecting *g, int timeout_ms)
{
    struct timespec begun, now;
    enum cb_greeting_status why = CB_GREETING_MALFORMED;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (int left = timeout_ms; left > 0;) {
        struct pollfd p = {g->fd, POLLIN, 0};
        if (poll(&p, 1, left) > 0) {
            enum cb_greeting_progress progress = cb_greeting_take(g, &why);
            if (progress == CB_GREETING_WHOLE) return true;
            if (progress == CB_GREETING_LEFT) break;
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        left =
            timeout_ms - (int)((now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000);
    }
    cb_greeting_answer(g->fd, why);
    return false;
}

void cb_greeting_answer(int fd, enum cb_greeting_status status)
{
    uint8_t byte = (uint8_t)status;
    ssize_t sent = send(fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)sent; /* a peer that does not read learns it from the end of the connection */
}

struct cb_stream cb_greeting_stream(const struct cb_connecting *g)
{
    if (g->greeting.flags & CB_GREETING_RING) return cb_ring_join(g->fd, g->passed);
    return cb_stream_plain(g->fd);
}
