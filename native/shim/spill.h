/* Spilling: managed memory for allocations beyond the card's part of a slice; see spill.c. */
#ifndef CALABASH_SHIM_SPILL_H
#define CALABASH_SHIM_SPILL_H

#include "shim/allocation.h"

/*
 * After cb_allocation_linear has returned false: allocate managed memory, or return CUDA_ERROR_OUT_OF_MEMORY.
 */
CUresult cb_spill(struct cb_allocation *allocation, CUdeviceptr *dptr, size_t bytesize);
CUresult cb_spill_managed(struct cb_allocation *allocation, CUdeviceptr *dptr, size_t bytesize,
                          unsigned int flags);
/* After a pool of `device` was full: allocate memory that is not the pool's. */
CUresult cb_spill_beside_pool(CUdeviceptr *dptr, size_t bytesize, int device);

#endif
