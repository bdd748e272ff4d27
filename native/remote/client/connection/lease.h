/* The way to a worker on another machine, for whoever has a lease there. */
#ifndef CALABASH_REMOTE_CLIENT_CONNECTION_LEASE_H
#define CALABASH_REMOTE_CLIENT_CONNECTION_LEASE_H

#include "remote/wire/stream.h"

/* `path` names a file with lines server=HOST:PORT, lease=HEX, key=HEX and, if one likes, grace_s=SECONDS. Kind NULL with a
 * line in `why`. */
struct cb_stream cb_lease_open(const char *path, char *why, size_t room);

#endif
