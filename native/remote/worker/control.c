#include "remote/worker/control.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

union one {
    struct cmsghdr header;
    char capacity[CMSG_SPACE(sizeof(int))];
};

bool cb_control_send(int control, const struct cb_connecting *guest)
{
    union one with = {.header = {CMSG_LEN(sizeof guest->passed), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec part = {(void *)&guest->greeting, sizeof guest->greeting};
    struct msghdr m = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &with, .msg_controllen = sizeof with};
    memcpy(CMSG_DATA(&with.header), &guest->passed, sizeof guest->passed);
    return sendmsg(control, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof guest->greeting;
}

int cb_control_receive(int control, struct cb_connecting *guest, int timeout_ms)
{
    union one with;
    struct iovec part = {&guest->greeting, sizeof guest->greeting};
    struct msghdr m = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &with, .msg_controllen = sizeof with};
    struct pollfd p = {control, POLLIN, 0};
    *guest = (struct cb_connecting){.fd = -1, .passed = -1};
    if (poll(&p, 1, timeout_ms) <= 0) return 0;
    if (recvmsg(control, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != sizeof guest->greeting) return -1;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (!c || c->cmsg_type != SCM_RIGHTS) return -1;
    memcpy(&guest->passed, CMSG_DATA(c), sizeof guest->passed);
    return 1;
}
