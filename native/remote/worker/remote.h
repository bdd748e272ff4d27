/* The way to a program on another machine: TLS, and another connection where one breaks. */
#ifndef CALABASH_REMOTE_WORKER_REMOTE_H
#define CALABASH_REMOTE_WORKER_REMOTE_H

#include "remote/worker/greeting.h"

/* Over the connection that was handed over, which is taken; kind NULL: it is none of ours, and that was said. */
struct cb_stream cb_remote_stream(struct cb_guest *guest);
/* From here on further connections of the session come through `control`; the grace without one is kept. */
bool cb_remote_follow(struct cb_stream *stream, int control);

#endif
