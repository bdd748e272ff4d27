/* Pinned memory becomes the worker's, too, when a device is first given an address in it. */
#ifndef CALABASH_REMOTE_CLIENT_MEMORY_PINNED_MAPPING_H
#define CALABASH_REMOTE_CLIENT_MEMORY_PINNED_MAPPING_H

#include "remote/client/api/base.h"
#include "remote/client/module/function_info.h"
#include "remote/wire/arena.h"

/* Whether there is pinned memory in the range that both ends can have. */
extern bool cb_arena_used;

CUresult cb_map(uint64_t address);

/* Pinned memory whose address is among what a kernel is given. */
CUresult cb_map_parameters(void **parameters, void **extra, const struct cb_function *f);

/* Before a command that a device address goes with. */
static inline CUresult cb_map_for(uint64_t address)
{
    if (address - CB_ARENA_BASE >= CB_ARENA_BYTES || !cb_arena_used) return CUDA_SUCCESS;
    return cb_map(address);
}

#endif
