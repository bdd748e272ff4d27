/* Which events and streams commands name. */
#ifndef CALABASH_REMOTE_CLIENT_STREAM_STREAM_USE_H
#define CALABASH_REMOTE_CLIENT_STREAM_STREAM_USE_H

#include "remote/client/stream/progress.h"
#include "remote/wire/frame.h"
#include "remote_ops.h"

/* A command that is being filled names a stream. */
void cb_touch_stream(enum cb_op op, uint64_t stream, uint32_t seq);
/* A command that is being filled names an event. */
void cb_touch_event(enum cb_op op, uint64_t event);
/* The default stream waits for others, so every command may concern it. */
bool cb_stream_is_everybodys(uint64_t stream);
/* Of a stream as this thread names it; NULL: nothing is kept of it. */
struct cb_progress *cb_stream_progress(uint64_t stream);
/* Of what the worker tells about. */
struct cb_progress *cb_told_progress(const struct cb_frame *f, uint64_t id);

#endif
