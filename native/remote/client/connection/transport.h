/*
 * The way to the worker: bytes in order, both ways. What CALABASH_REMOTE names:
 *   unix:PATH       the socket of a host on this machine, through memory that both share
 *   socket:PATH     the same through the socket alone
 *   file:PATH       a lease of a server: lines server=HOST:PORT, lease=HEX, key=HEX and grace_s=SECONDS
 *   tcp:HOST:PORT   a worker in the open, for tests and measurements
 */
#ifndef CALABASH_REMOTE_CLIENT_CONNECTION_TRANSPORT_H
#define CALABASH_REMOTE_CLIENT_CONNECTION_TRANSPORT_H

#include "remote/wire/stream.h"

struct cb_link {
    struct cb_stream stream;
};

/* False with a line in `why`, which has `room` bytes. */
bool cb_link_open(struct cb_link *l, const char *where, char *why, size_t room);
void cb_link_close(struct cb_link *l);
/* The program ends; what was sent arrives. */
void cb_link_leave(struct cb_link *l);
/* All of it; the parts are used up. False when the other side is gone. */
bool cb_link_send(struct cb_link *l, struct iovec *parts, int count);
/* At least one byte; 0: the other side is gone, or nothing is there and `wait` is false (then *gone is false). */
size_t cb_link_receive(struct cb_link *l, void *into, size_t room, bool wait, bool *gone);
/* Why the connection has ended, where that is known: an ending for the line that says so, else empty. */
const char *cb_link_reason(const struct cb_link *l);

#endif
