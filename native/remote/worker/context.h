/* Contexts of the session. */
#ifndef CALABASH_REMOTE_WORKER_CONTEXT_H
#define CALABASH_REMOTE_WORKER_CONTEXT_H

#include "remote/worker/request.h"

/* Make the context that the command names current. */
CUresult cb_context_enter(struct cb_request *q);

#endif
