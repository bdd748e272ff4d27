/* Memory beyond the card: what is given when the card's part of a slice is used up; see spill.c. */
#ifndef CALABASH_SHIM_SPILL_H
#define CALABASH_SHIM_SPILL_H

#include "shim/allocation.h"

/* After cb_allocation_linear has said no: the allocation, or CUDA_ERROR_OUT_OF_MEMORY. */
CUresult cb_spill(struct cb_allocation *allocation, CUdeviceptr *dptr, size_t bytesize);
CUresult cb_spill_managed(struct cb_allocation *allocation, CUdeviceptr *dptr, size_t bytesize,
                          unsigned int flags);
/* After a pool of `device` has found no room: memory that is not the pool's. */
CUresult cb_spill_beside_pool(CUdeviceptr *dptr, size_t bytesize, int device);
/* What cannot be done with managed memory, or not beyond the card; said where CALABASH_VERBOSE is set. */
void cb_spill_refuses(const char *what);

#endif
