/* Registered host memory. */
#ifndef CALABASH_SIM_CUDA_MEMORY_REGISTERED_MEMORY_H
#define CALABASH_SIM_CUDA_MEMORY_REGISTERED_MEMORY_H

#include "sim/cuda/memory/address_space.h"

/* As range_find, but also for registered host memory. Requires the memory lock. */
struct range *range_find_any(uint64_t address);

#endif
