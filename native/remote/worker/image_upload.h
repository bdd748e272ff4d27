/* Reception of an image from the program. */
#ifndef CALABASH_REMOTE_WORKER_IMAGE_UPLOAD_H
#define CALABASH_REMOTE_WORKER_IMAGE_UPLOAD_H

#include "remote/worker/images.h"
#include "remote/worker/request.h"

/*
 * Take the size and hash of an image from a command, and find the image. NULL: it must be sent. The request is
 * bad if the image that was sent has another hash.
 */
const void *cb_upload_named(struct cb_request *q, size_t *bytes);

#endif
