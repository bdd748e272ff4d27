/* Start and end of contexts. */
#ifndef CALABASH_SIM_CUDA_CONTEXT_CONTEXT_LIFECYCLE_H
#define CALABASH_SIM_CUDA_CONTEXT_CONTEXT_LIFECYCLE_H

#include "sim/cuda/context/context.h"

/* Charge it to its device and open its queue. */
CUresult context_activate(struct context *c);
/* Wait for its work and release all that is in it. The caller holds no lock. */
void context_deactivate(struct context *c);

#endif
