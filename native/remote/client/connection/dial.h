/* Connecting to a server. */
#ifndef CALABASH_REMOTE_CLIENT_CONNECTION_DIAL_H
#define CALABASH_REMOTE_CLIENT_CONNECTION_DIAL_H

#include <stddef.h>

#define CB_DIAL_MS 5000

/* A connection to HOST:PORT in that time for each of its addresses, whose dead other end is noticed within 10 s; -1 with a
 * line in `why`. */
int cb_dial(const char *where, int timeout_ms, char *why, size_t room);

#endif
