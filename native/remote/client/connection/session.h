/* The connection of this process to its worker. */
#ifndef CALABASH_REMOTE_CLIENT_CONNECTION_SESSION_H
#define CALABASH_REMOTE_CLIENT_CONNECTION_SESSION_H

#include "remote/client/connection/call.h"

/* Of the session, before it is opened. */
extern enum cb_purpose cb_session_purpose;
extern const char *cb_session_where; /* NULL: as CALABASH_REMOTE says */

/* Connect, once. False when there is no worker; why has been said. */
bool cb_session_open(void);
/* This process is a child of one that has a connection. */
bool cb_session_forked(void);

#endif
