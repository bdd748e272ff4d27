/* Device memory of contexts. */
#ifndef CALABASH_REMOTE_CLIENT_MEMORY_DEVICE_MEMORY_H
#define CALABASH_REMOTE_CLIENT_MEMORY_DEVICE_MEMORY_H

#include "remote/client/api/base.h"

/* Drop the records of a context's memory, before it is destroyed or reset. */
void cb_memory_context_ends(CUcontext context);

#endif
