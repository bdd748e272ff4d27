/* Thread that sends gathered commands which no other thread has sent. */
#ifndef CALABASH_REMOTE_CLIENT_CONNECTION_SENDER_H
#define CALABASH_REMOTE_CLIENT_CONNECTION_SENDER_H

#include "remote/client/connection/command_buffer.h"

bool cb_sender_start(void);
void cb_sender_wake(void);       /* there are commands; costs nothing while the thread is awake */
void cb_sender_after_fork(void); /* in a child: there is no such thread */

#endif
