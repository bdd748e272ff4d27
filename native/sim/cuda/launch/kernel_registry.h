/* Kernels that the simulated driver knows by name, and the modelled time of work. */
#ifndef CALABASH_SIM_CUDA_LAUNCH_KERNEL_REGISTRY_H
#define CALABASH_SIM_CUDA_LAUNCH_KERNEL_REGISTRY_H

#include "image/image.h"
#include "sim/cuda/context/context.h"

struct kernel_call {
    unsigned int grid[3], block[3];
    const unsigned char *parameters; /* packed at the offsets of the registry's signature */
};

struct kernel_cost {
    uint64_t bytes, flops, exact_ns;
};

struct kernel { /* one of the registry */
    const char *name;
    const char *signature; /* one letter for each parameter: p pointer, i int, f float, l 64-bit integer */
    void (*cost)(const struct kernel_call *call, struct kernel_cost *cost);
    CUresult (*run)(struct context *c, const struct kernel_call *call); /* NULL: no effect on memory */
};

const struct kernel *kernel_find(const char *symbol);
/* Offsets and sizes of a registered kernel's parameters; return their number. */
uint32_t kernel_parameters(const struct kernel *k, struct parameter *out, uint32_t *bytes);
uint64_t kernel_duration(const struct sim_profile *p, const struct kernel_cost *cost);
uint64_t copy_duration(const struct sim_profile *p, uint64_t bytes, uint64_t bandwidth_bps);

#endif
