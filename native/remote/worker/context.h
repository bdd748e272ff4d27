/* Contexts of the session. */
#ifndef CALABASH_REMOTE_WORKER_CONTEXT_H
#define CALABASH_REMOTE_WORKER_CONTEXT_H

#include "remote/worker/request.h"

/* The context that the command names is current from here on. */
CUresult cb_context_enter(struct cb_request *q);

#endif
