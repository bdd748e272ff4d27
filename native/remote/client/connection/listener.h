/* Thread that reads notices while some are expected and no thread waits for an answer. */
#ifndef CALABASH_REMOTE_CLIENT_CONNECTION_LISTENER_H
#define CALABASH_REMOTE_CLIENT_CONNECTION_LISTENER_H

#include "remote/client/api/base.h"

void cb_listener_expect(int more);        /* expect so many more notices, or, below zero, less */
void cb_listener_expect_slowly(int more); /* the same for notices that no thread waits for */
void cb_listener_after_fork(void);        /* in a child: there is no such thread */
/* Start a thread of the library, with all signals blocked. */
bool cb_thread_start(void *(*run)(void *));

#endif
