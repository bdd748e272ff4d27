/* Mapping of pinned memory at the worker, when a device is first given an address in it. */
#ifndef CALABASH_REMOTE_CLIENT_MEMORY_PINNED_MAPPING_H
#define CALABASH_REMOTE_CLIENT_MEMORY_PINNED_MAPPING_H

#include "remote/client/api/base.h"
#include "remote/client/module/function_info.h"
#include "remote/wire/arena.h"

/* True if there is pinned memory in the range that both ends can map. */
extern bool cb_arena_used;

CUresult cb_pinned_map(uint64_t address);

/* Map pinned memory whose address is among the parameters of a kernel. */
CUresult cb_pinned_map_parameters(void **parameters, void **extra, const struct cb_function *f);

/* Called before a command that carries a device address. */
static inline CUresult cb_pinned_map_for(uint64_t address)
{
    if (address - CB_ARENA_BASE >= CB_ARENA_BYTES || !cb_arena_used) return CUDA_SUCCESS;
    return cb_pinned_map(address);
}

#endif
