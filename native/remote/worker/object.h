/* Objects of the session: look-up of the driver's handle by number, and of the number by handle. */
#ifndef CALABASH_REMOTE_WORKER_OBJECT_H
#define CALABASH_REMOTE_WORKER_OBJECT_H

#include "remote/worker/request.h"

/*
 * The driver's handle; a stream may also be a default one. If there is none, the result is NULL and the request
 * is bad.
 */
void *cb_object_of(struct cb_request *q, enum cb_kind kind, uint64_t id);
/* Add an object that the client has numbered. */
CUresult cb_object_named(struct cb_request *q, enum cb_kind kind, uint64_t id, void *handle);
/* Number of a handle of the driver, assigned now if it has none; 0 for NULL, or if there are too many. */
uint64_t cb_object_name(struct cb_request *q, enum cb_kind kind, void *handle);
void cb_object_gone(struct cb_request *q, enum cb_kind kind, uint64_t id);

#endif
