/* The life of a context. */
#ifndef CALABASH_SIM_CUDA_CONTEXT_CONTEXT_LIFECYCLE_H
#define CALABASH_SIM_CUDA_CONTEXT_CONTEXT_LIFECYCLE_H

#include "sim/cuda/context/context.h"

/* Charges it to its device and gives it a queue. */
CUresult context_activate(struct context *c);
/* Waits for its work and drops all that is in it. The caller holds no lock. */
void context_deactivate(struct context *c);

#endif
