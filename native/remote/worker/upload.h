/* An image on its way from the program. */
#ifndef CALABASH_REMOTE_UPLOAD_H
#define CALABASH_REMOTE_UPLOAD_H

#include "remote/worker/images.h"
#include "remote/worker/request.h"

/* The image that a command names by size and hash: taken from it, and found. NULL: it must be sent. The request is bad when
 * what was sent has another hash. */
const void *cb_upload_named(struct cb_request *q, size_t *bytes);

#endif
