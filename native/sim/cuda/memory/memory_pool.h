/* Memory pools. */
#ifndef CALABASH_SIM_CUDA_MEMORY_MEMORY_POOL_H
#define CALABASH_SIM_CUDA_MEMORY_MEMORY_POOL_H

#include "sim/cuda/context/context.h"
#include "sim/cuda/memory/address_space.h"
#include "sim/cuda/process/object.h"

struct pool {
    struct object object;
    struct device *device;
    struct pool *next;
    uint64_t used, used_high, reserved, reserved_high;
    uint64_t release_threshold, max_size;
    uint64_t cached; /* reserved and not used */
    struct kept *kept;
    bool is_default;
    int reuse[4];
    uint32_t access; /* bit per ordinal */
};

struct pool *pool_new(struct device *d, bool is_default);
/* Remove it from the list of pools; memory that the program still holds of it becomes ordinary memory. */
void pool_unlink(struct pool *p);
CUresult pool_device_default(struct device *d, struct pool **out);
CUresult pool_take(struct context *c, struct pool *p, uint64_t bytes, struct range **out);
void pool_drop(struct range *r);
/* Release what the pool keeps beyond `keep` bytes; return true if that was anything. */
bool pool_trim(struct pool *p, uint64_t keep);
bool pools_trim_device(struct device *d);
/* Restart the high-water mark of reserved (or used) bytes. */
void pool_reset_high(struct pool *p, bool reserved);

#endif
