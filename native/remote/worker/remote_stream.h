/* Stream to a program on another machine: TLS, with reconnection if a connection breaks. */
#ifndef CALABASH_REMOTE_WORKER_REMOTE_STREAM_H
#define CALABASH_REMOTE_WORKER_REMOTE_STREAM_H

#include "remote/worker/greeting.h"

/*
 * Make the stream over the connection that was handed over, and take ownership of it; kind NULL: not a valid
 * connection, after a message.
 */
struct cb_stream cb_remote_stream(struct cb_connecting *guest);
/*
 * Accept further connections of the session through `control`, and end the session when the grace has passed
 * without one.
 */
bool cb_remote_follow(struct cb_stream *stream, int control);

#endif
