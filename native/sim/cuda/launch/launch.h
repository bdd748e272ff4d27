/* Description of kernel launches as work. */
#ifndef CALABASH_SIM_CUDA_LAUNCH_LAUNCH_H
#define CALABASH_SIM_CUDA_LAUNCH_LAUNCH_H

#include "sim/cuda/module/module.h"
#include "sim/cuda/stream/stream_work.h"

/* Check a launch and describe it as work; `buffer` (LAUNCH_BYTES, aligned to 16) receives its argument. */
#define LAUNCH_BYTES 4352
CUresult launch_prepare(struct function *f, const struct launch_shape *shape, void **kernelParams,
                        void **extra, struct context *c, struct work *w, unsigned char *buffer);

/* Pointers to the packed parameters of a launch that launch_prepare described. */
void launch_parameters(const struct work *w, void **out);

#endif
