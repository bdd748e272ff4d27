/* Green contexts, and the resources of which they are made. */
#ifndef CALABASH_SIM_CUDA_GREEN_H
#define CALABASH_SIM_CUDA_GREEN_H

#include "sim/cuda/context.h"

struct green {
    struct object object;
    struct context *context; /* NULL: it has ended */
    struct device *device;
    uint64_t id;
};

struct resources { /* a descriptor */
    struct object object;
    struct device *device;
    uint32_t sm_count;
};

/* The multiprocessors of a device as this process sees them. */
uint32_t resource_multiprocessors(const struct device *d);

#endif
