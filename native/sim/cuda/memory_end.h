/* What a context leaves of memory when it ends. */
#ifndef CALABASH_SIM_CUDA_MEMORY_END_H
#define CALABASH_SIM_CUDA_MEMORY_END_H

#include "sim/cuda/context.h"

void memory_drop_context(struct context *c);

#endif
