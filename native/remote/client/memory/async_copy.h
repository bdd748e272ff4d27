/* Copies to this process that nobody waits for: what comes is put where it belongs by whoever reads. */
#ifndef CALABASH_REMOTE_CLIENT_MEMORY_ASYNC_COPY_H
#define CALABASH_REMOTE_CLIENT_MEMORY_ASYNC_COPY_H

#include "remote/client/api/base.h"

#define CB_FETCH_MAX (64u << 20)

/* `known`: all of it is device memory of ours, so nothing can be wrong with it. */
CUresult cb_fetch(void *to, CUdeviceptr from, size_t bytes, CUstream stream, bool known);
struct cb_call;
/* The same for a call that is filled and makes something which copies, perhaps often. */
CUresult cb_fetch_ask(struct cb_call *call, void *to, size_t bytes);
/* Whether there is room for one of that size. */
bool cb_fetch_fits(size_t bytes);
/* Whether some are under way: what waits for a stream has to be asked then. */
bool cb_fetches_open(void);
/* Whether one of them is to come there. */
bool cb_fetch_is_into(uint64_t address, size_t bytes);

#endif
