/* Threads of the program: each has a default stream of its own, where it asks for one. */
#ifndef CALABASH_REMOTE_THREAD_H
#define CALABASH_REMOTE_THREAD_H

#include "remote/worker/request.h"

/* The calling thread's default stream in the current context. NULL, and the request has failed, when it cannot be made. */
void *cb_thread_stream(struct cb_request *q);
/* The streams of a context are gone with it. */
void cb_thread_forget(uint16_t context);

#endif
