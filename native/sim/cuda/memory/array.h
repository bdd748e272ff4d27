/* Arrays. */
#ifndef CALABASH_SIM_CUDA_MEMORY_ARRAY_H
#define CALABASH_SIM_CUDA_MEMORY_ARRAY_H

#include "sim/cuda/memory/address_space.h"
#include "sim/cuda/process/object.h"

struct array {
    struct object object;
    CUDA_ARRAY3D_DESCRIPTOR desc;
    struct range *range;
    uint64_t base;
    size_t element, row_bytes, slice_bytes, bytes;
    struct device *device;
    struct mipmap *mipmap;
};

size_t format_bytes(CUarray_format f);
/* Free an array whose memory ends with its context, and the mipmapped array that contains it. */
void array_drop_with_context(struct array *a);

#endif
