/* Asynchronous copies to this process: the thread that reads the connection puts the data in its place. */
#ifndef CALABASH_REMOTE_CLIENT_MEMORY_ASYNC_COPY_H
#define CALABASH_REMOTE_CLIENT_MEMORY_ASYNC_COPY_H

#include "remote/client/api/base.h"

#define CB_ASYNC_COPY_MAX (64u << 20)

/* `known`: all of the source is device memory of ours, so the copy cannot fail by its addresses. */
CUresult cb_async_copy(void *to, CUdeviceptr from, size_t bytes, CUstream stream, bool known);
struct cb_call;
/* The same for a filled call that creates something which copies, perhaps repeatedly. */
CUresult cb_async_copy_ask(struct cb_call *call, void *to, size_t bytes);
/* Return true if a copy of that size can be started now. */
bool cb_async_copy_fits(size_t bytes);
/* Return true if copies are under way: a wait for a stream must then be asked. */
bool cb_async_copies_open(void);
/* Return true if the destination of one of them overlaps the range. */
bool cb_async_copy_is_into(uint64_t address, size_t bytes);

#endif
