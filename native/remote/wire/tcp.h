/* Options of TCP connections that both ends set. */
#ifndef CALABASH_REMOTE_TCP_H
#define CALABASH_REMOTE_TCP_H

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

/* Send without delay, and detect a dead peer within 10 s, busy or idle. */
static inline void cb_tcp_prepare(int fd)
{
    int one = 1, idle_s = 2, between_s = 1, probes = 6;
    unsigned int unanswered_ms = 8000;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between_s, sizeof between_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms, sizeof unanswered_ms);
}

/*
 * For a connection whose peer is asked whether it lives (alive.h): wait for a peer that does not read for long.
 */
static inline void cb_tcp_be_patient(int fd)
{
    unsigned int never = 0;
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &never, sizeof never);
}

#endif
