/* A thread that looks for notices while some are expected and nobody waits for an answer. */
#ifndef CALABASH_REMOTE_CLIENT_CONNECTION_LISTENER_H
#define CALABASH_REMOTE_CLIENT_CONNECTION_LISTENER_H

#include "remote/client/api/base.h"

void cb_listener_expect(int more);        /* or, below zero, less */
void cb_listener_expect_slowly(int more); /* the same, where nobody waits for it */
void cb_listener_forget(void);            /* in a child: it has no such thread */
/* A thread of ours, which takes no signals. */
bool cb_thread_start(void *(*run)(void *));

#endif
