/* Heartbeat thread: reports that the worker lives, however long a command takes. */
#ifndef CALABASH_REMOTE_WORKER_HEARTBEAT_H
#define CALABASH_REMOTE_WORKER_HEARTBEAT_H

#include "remote/wire/stream.h"

/* Return false if the thread cannot be started. */
bool cb_heartbeat_start(struct cb_stream *stream);

#endif
