/*
 * Transport to the worker: an ordered byte stream in both directions. CALABASH_REMOTE names it:
 *
 *   unix:PATH       the socket of a host on this machine, with shared memory
 *   socket:PATH     the same through the socket alone
 *   file:PATH       a lease of a server: lines server=HOST:PORT, lease=HEX, key=HEX and grace_s=SECONDS
 *   tcp:HOST:PORT   a worker without encryption, for tests and measurements
 */
#ifndef CALABASH_REMOTE_CLIENT_CONNECTION_TRANSPORT_H
#define CALABASH_REMOTE_CLIENT_CONNECTION_TRANSPORT_H

#include "remote/wire/stream.h"

struct cb_transport {
    struct cb_stream stream;
};

/* Return false with a line in `why`, which has `capacity` bytes. */
bool cb_transport_open(struct cb_transport *l, const char *where, char *why, size_t capacity);
void cb_transport_close(struct cb_transport *l);
/* Called when the program ends; what was sent arrives. */
void cb_transport_leave(struct cb_transport *l);
/* Send all of it; the parts are consumed. Return false if the other side has ended. */
bool cb_transport_send(struct cb_transport *l, struct iovec *parts, int count);
/*
 * Receive at least one byte. Return 0 if the other side has ended, or if there is none and `wait` is false
 * (then *gone is false).
 */
size_t cb_transport_receive(struct cb_transport *l, void *into, size_t capacity, bool wait, bool *gone);
/* Reason for the end of the connection, if known, as the ending of a message; else an empty string. */
const char *cb_transport_reason(const struct cb_transport *l);

#endif
