/* Release of a context's remaining memory when the context is destroyed. */
#ifndef CALABASH_SIM_CUDA_MEMORY_CONTEXT_MEMORY_H
#define CALABASH_SIM_CUDA_MEMORY_CONTEXT_MEMORY_H

#include "sim/cuda/context/context.h"

void memory_drop_context(struct context *c);

#endif
