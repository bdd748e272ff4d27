/* The session: the connection of this process to its worker. */
#ifndef CALABASH_REMOTE_CLIENT_CONNECTION_SESSION_H
#define CALABASH_REMOTE_CLIENT_CONNECTION_SESSION_H

#include "remote/client/connection/call.h"

/* Set before the session is opened. */
extern enum cb_purpose cb_session_purpose;
extern const char *cb_session_where; /* NULL: the value of CALABASH_REMOTE */

/* Connect, once. Return false if there is no worker, after a message. */
bool cb_session_open(void);
/* Return true if this process is a child of one that has a connection. */
bool cb_session_forked(void);

#endif
