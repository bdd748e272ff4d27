/* The thread that sends what nobody else has sent. */
#ifndef CALABASH_REMOTE_CLIENT_CONNECTION_SENDER_H
#define CALABASH_REMOTE_CLIENT_CONNECTION_SENDER_H

#include "remote/client/connection/command_buffer.h"

bool cb_sender_start(void);
void cb_sender_wake(void);   /* there is something; costs nothing while it is awake */
void cb_sender_forget(void); /* in a child: it has no such thread */

#endif
