/* Resources for green contexts. */
#ifndef CALABASH_SIM_CUDA_CONTEXT_GREEN_RESOURCE_H
#define CALABASH_SIM_CUDA_CONTEXT_GREEN_RESOURCE_H

#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"

struct resources { /* a descriptor */
    struct object object;
    struct device *device;
    uint32_t sm_count;
};

/* All `count` multiprocessors of a device, or of a context, as a resource that can be split. */
CUresult resource_whole(const struct device *d, uint32_t count, CUdevResource *resource,
                        CUdevResourceType type);

#endif
