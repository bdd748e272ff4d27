/* TCP connections to a server. */
#ifndef CALABASH_REMOTE_CLIENT_CONNECTION_DIAL_H
#define CALABASH_REMOTE_CLIENT_CONNECTION_DIAL_H

#include <stddef.h>

#define CB_DIAL_MS 5000

/*
 * Connect to HOST:PORT within that time for each of its addresses; a dead peer is detected within 10 s. Return
 * -1 with a line in `why` on failure.
 */
int cb_dial(const char *where, int timeout_ms, char *why, size_t capacity);

#endif
