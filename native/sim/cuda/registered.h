/* Registered host memory. */
#ifndef CALABASH_SIM_CUDA_REGISTERED_H
#define CALABASH_SIM_CUDA_REGISTERED_H

#include "sim/cuda/space.h"

/* As range_find, and registered host memory. The memory lock is held. */
struct range *range_find_any(uint64_t address);

#endif
