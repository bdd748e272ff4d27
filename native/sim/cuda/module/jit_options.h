/* Compiler options of loading and linking: log buffers and limits. */
#ifndef CALABASH_SIM_CUDA_MODULE_JIT_OPTIONS_H
#define CALABASH_SIM_CUDA_MODULE_JIT_OPTIONS_H

#include "sim/cuda/process/call.h"
#include "sim/ptx/report.h"

/* Write the compiler's report into the program's buffers, and its length. */
void jit_write_logs(unsigned int count, const CUjit_option *options, void **values, const struct report *r);

/* Most registers that a kernel may have; 0: not given. */
uint32_t jit_registers(unsigned int count, const CUjit_option *options, void *const *values);

#endif
