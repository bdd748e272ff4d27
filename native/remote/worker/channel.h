/* The connection to the program. */
#ifndef CALABASH_REMOTE_WORKER_CHANNEL_H
#define CALABASH_REMOTE_WORKER_CHANNEL_H

#include "remote/wire/stream.h"

/* Set the stream, once, before anything else; return it at its final address. */
struct cb_stream *cb_channel_use(struct cb_stream stream);
/* Send all of it, one caller at a time; return false if the program has ended. */
bool cb_channel_send(const void *data, size_t bytes);
bool cb_channel_send_parts(struct iovec *parts, int count);
/* Receive at least one byte, in one thread; return 0 if the program has ended. */
size_t cb_channel_receive(void *into, size_t capacity);

#endif
