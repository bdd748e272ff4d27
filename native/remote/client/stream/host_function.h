/* Functions of the program in streams. */
#ifndef CALABASH_REMOTE_CLIENT_STREAM_HOST_FUNCTION_H
#define CALABASH_REMOTE_CLIENT_STREAM_HOST_FUNCTION_H

#include "remote/client/api/base.h"

/* Return true if functions have been given to a stream and have not run. */
bool cb_host_functions_open(void);

#endif
