/* Objects of the session: the driver's handle by number, and the number by handle. */
#ifndef CALABASH_REMOTE_WORKER_OBJECT_H
#define CALABASH_REMOTE_WORKER_OBJECT_H

#include "remote/worker/request.h"

/* The driver's handle; a stream may also be a default one. NULL, and the request is bad, when there is none. */
void *cb_object_of(struct cb_request *q, enum cb_kind kind, uint64_t id);
/* The client has numbered it. */
CUresult cb_object_named(struct cb_request *q, enum cb_kind kind, uint64_t id, void *handle);
/* The number of a handle of the driver's, given now if it has none; 0 for NULL, or when there are too many. */
uint64_t cb_object_name(struct cb_request *q, enum cb_kind kind, void *handle);
void cb_object_gone(struct cb_request *q, enum cb_kind kind, uint64_t id);

#endif
