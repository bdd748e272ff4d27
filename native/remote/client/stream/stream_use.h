/* Record of the commands that last used each event and stream. */
#ifndef CALABASH_REMOTE_CLIENT_STREAM_STREAM_USE_H
#define CALABASH_REMOTE_CLIENT_STREAM_STREAM_USE_H

#include "remote/client/stream/progress.h"
#include "remote/wire/frame.h"
#include "remote_ops.h"

/* Note that a command that is being filled uses a stream. */
void cb_stream_use_note(enum cb_op op, uint64_t stream, uint32_t seq);
/* Note that a command that is being filled uses an event. */
void cb_event_use_note(enum cb_op op, uint64_t event);
/* Return true for the default stream that waits for others, so that every command may concern it. */
bool cb_stream_is_shared_default(uint64_t stream);
/* Progress of a stream as this thread names it; NULL: not recorded. */
struct cb_progress *cb_stream_progress(uint64_t stream);
/* Progress of the object of a notice. */
struct cb_progress *cb_notice_progress(const struct cb_frame *f, uint64_t id);

#endif
