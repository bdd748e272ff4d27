/* Copies: what goes out, what comes back, and what moves among devices. */
#ifndef CALABASH_REMOTE_CLIENT_MEMORY_COPY_H
#define CALABASH_REMOTE_CLIENT_MEMORY_COPY_H

#include "remote/client/connection/call.h"

CUresult cb_copy_in(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream, bool async);
CUresult cb_copy_out(void *dst, CUdeviceptr src, size_t bytes, CUstream stream, bool async);
/* Both addresses by what lies there; a device address that is named as such is not the program's own memory. */
CUresult cb_copy_any(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream, bool async);
/* A stream handle, or an error. */
CUresult cb_stream_is_one(CUstream stream);
/* A command is complete: send it, or ask when its failure can be told at once. `waits`: the program may now look. */
CUresult cb_finish(struct cb_call *c, bool asks, bool waits);

#endif
