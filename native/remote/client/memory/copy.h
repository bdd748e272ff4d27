/* Copies to the worker, from the worker, and between devices. */
#ifndef CALABASH_REMOTE_CLIENT_MEMORY_COPY_H
#define CALABASH_REMOTE_CLIENT_MEMORY_COPY_H

#include "remote/client/connection/call.h"

CUresult cb_copy_in(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream, bool async);
CUresult cb_copy_out(void *dst, CUdeviceptr src, size_t bytes, CUstream stream, bool async);
/* Return CUDA_SUCCESS for a valid stream handle, else an error. */
CUresult cb_stream_check(CUstream stream);
/*
 * Complete a command: send it, or ask if its failure can be returned at once. `waits`: the program may read the
 * data afterwards.
 */
CUresult cb_copy_finish(struct cb_call *c, bool asks, bool waits);

#endif
