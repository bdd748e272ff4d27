/* Connecting to a server. */
#ifndef CALABASH_REMOTE_DIAL_H
#define CALABASH_REMOTE_DIAL_H

#include <stddef.h>

#define CB_DIAL_MS 5000 /* for each of its addresses */

/* A connection to HOST:PORT, whose dead other end is noticed within 10 s; -1 with a line in `why`. */
int cb_dial(const char *where, char *why, size_t room);

#endif
