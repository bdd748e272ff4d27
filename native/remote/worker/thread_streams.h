/* Per-thread default streams of the program's threads, made on demand. */
#ifndef CALABASH_REMOTE_WORKER_THREAD_STREAMS_H
#define CALABASH_REMOTE_WORKER_THREAD_STREAMS_H

#include "remote/worker/request.h"

/*
 * The calling thread's default stream in the current context. If it cannot be made, the result is NULL and the
 * request has failed.
 */
void *cb_thread_stream(struct cb_request *q);
/* Drop the streams of a destroyed context. */
void cb_thread_drop_context(uint16_t context);

#endif
