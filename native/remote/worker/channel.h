/* The way to the program. */
#ifndef CALABASH_REMOTE_WORKER_CHANNEL_H
#define CALABASH_REMOTE_WORKER_CHANNEL_H

#include "remote/wire/stream.h"

/* Before anything else, once; the stream, where it stays. */
struct cb_stream *cb_channel_use(struct cb_stream stream);
/* All of it, one caller at a time; false: the program is gone. */
bool cb_channel_send(const void *data, size_t bytes);
bool cb_channel_send_parts(struct iovec *parts, int count);
/* At least one byte, by one thread; 0: the program is gone. */
size_t cb_channel_receive(void *into, size_t room);

#endif
