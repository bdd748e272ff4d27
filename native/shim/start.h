/* Start of the shim at the first call of a process; see start.c. */
#ifndef CALABASH_SHIM_START_H
#define CALABASH_SHIM_START_H

#include "shim/base.h"

CUresult cb_start_cuda(void);     /* CUDA_SUCCESS, or an error after one line on stderr */
nvmlReturn_t cb_start_nvml(void); /* the same for NVML */
#define CB_ENTER()                                                             \
    do {                                                                       \
        if (CB_UNLIKELY(!__atomic_load_n(&cb.cuda_ready, __ATOMIC_ACQUIRE))) { \
            CUresult cb_entered = cb_start_cuda();                             \
            if (cb_entered != CUDA_SUCCESS) return cb_entered;                 \
        }                                                                      \
    } while (0)
#define CB_ENTER_NVML()                                                        \
    do {                                                                       \
        if (CB_UNLIKELY(!__atomic_load_n(&cb.nvml_ready, __ATOMIC_ACQUIRE))) { \
            nvmlReturn_t cb_entered = cb_start_nvml();                         \
            if (cb_entered != NVML_SUCCESS) return cb_entered;                 \
        }                                                                      \
    } while (0)

#endif
