/* Descriptions of kernels for the program. */
#ifndef CALABASH_REMOTE_WORKER_FUNCTION_INFO_H
#define CALABASH_REMOTE_WORKER_FUNCTION_INFO_H

#include "remote/worker/request.h"

/* Put the number of kernels of the image of `kind`, then those from `from` on, as many as fit one answer. */
CUresult cb_describe_image(struct cb_request *q, enum cb_kind kind, void *image, uint64_t from);
/* Put one kernel, with its attributes. */
CUresult cb_describe_function(struct cb_request *q, enum cb_kind kind, void *handle);
/* Put its attributes alone. */
CUresult cb_describe_attributes(struct cb_request *q, enum cb_kind kind, void *handle);

#endif
