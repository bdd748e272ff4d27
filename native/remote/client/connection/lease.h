/* Connection to a worker on another machine with a lease. */
#ifndef CALABASH_REMOTE_CLIENT_CONNECTION_LEASE_H
#define CALABASH_REMOTE_CLIENT_CONNECTION_LEASE_H

#include "remote/wire/stream.h"

/*
 * `path` names a file with lines server=HOST:PORT, lease=HEX, key=HEX and optionally grace_s=SECONDS. Kind NULL
 * with a line in `why` on failure.
 */
struct cb_stream cb_lease_open(const char *path, char *why, size_t capacity);

#endif
