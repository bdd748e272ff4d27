/* Kernels, described for the program. */
#ifndef CALABASH_REMOTE_DESCRIBE_H
#define CALABASH_REMOTE_DESCRIBE_H

#include "remote/worker/request.h"

/* How many kernels the image of `kind` has, then those from `from` on, as many as one answer takes. */
CUresult cb_describe_image(struct cb_request *q, enum cb_kind kind, void *image, uint64_t from);
/* One, with its attributes. */
CUresult cb_describe_function(struct cb_request *q, enum cb_kind kind, void *handle);
/* Its attributes alone. */
CUresult cb_describe_attributes(struct cb_request *q, enum cb_kind kind, void *handle);

#endif
