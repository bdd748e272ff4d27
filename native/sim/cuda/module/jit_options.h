/* The options of loading and linking: where the log goes. */
#ifndef CALABASH_SIM_CUDA_MODULE_JIT_OPTIONS_H
#define CALABASH_SIM_CUDA_MODULE_JIT_OPTIONS_H

#include "sim/cuda/process/call.h"
#include "sim/ptx/report.h"

/* Write what the compiler said into the program's buffers, and how long that is. */
void jit_tell(unsigned int count, const CUjit_option *options, void **values, const struct report *r);

/* The most registers that a kernel may have; 0: nobody said. */
uint32_t jit_registers(unsigned int count, const CUjit_option *options, void *const *values);

#endif
