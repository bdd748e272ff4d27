/* Launches of interpreted PTX kernels. */
#ifndef CALABASH_SIM_CUDA_LAUNCH_KERNEL_PTX_H
#define CALABASH_SIM_CUDA_LAUNCH_KERNEL_PTX_H

#include "sim/cuda/module/module.h"
#include "sim/cuda/stream/stream_work.h"

/* Describe a launch as work; its parameters are passed as kernelParams or extra. `buffer` has `capacity` bytes. */
CUresult kernel_ptx_prepare(struct function *f, const struct launch_shape *shape, void **kernelParams,
                            void **extra, struct context *c, struct work *w, unsigned char *buffer,
                            size_t capacity);
/* Pointers to the parameters of such a launch. */
void kernel_ptx_parameters(const struct work *w, void **out);
bool kernel_ptx_is(const struct work *w);

#endif
