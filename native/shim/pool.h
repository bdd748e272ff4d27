/* Charging of the driver's memory pools, those of graphs included; see pool.c. */
#ifndef CALABASH_SHIM_POOL_H
#define CALABASH_SHIM_POOL_H

#include "shim/base.h"

extern int cb_pools_used; /* set once the process has a pool */
struct cb_pool;
struct cb_pool *cb_pool_of(CUmemoryPool handle, CUdevice ordinal,
                           int device);             /* recorded if it is not known yet */
struct cb_pool *cb_pool_known(CUmemoryPool handle); /* NULL: never seen */
void cb_pool_gone(CUmemoryPool handle);
int cb_pool_device(const struct cb_pool *pool);
/* NULL: the device is not in the slice, or no host memory */
struct cb_pool *cb_pool_of_graphs(CUdevice ordinal);
/* Call these around one driver call that may let the pool grow by up to `bytes`: */
bool cb_pool_begin(struct cb_pool *pool, uint64_t bytes, bool may_reuse);
/* count the refusal and return CUDA_ERROR_OUT_OF_MEMORY */
CUresult cb_pool_refused(const struct cb_pool *pool);
bool cb_pool_end(struct cb_pool *pool); /* return false if it has grown beyond the cap */
void cb_pools_refresh(int device);      /* -1: of all devices */
void cb_pools_trim(int device);
static inline void cb_pools_settle(void) /* Called when the GPU has caught up: pools may have shrunk. */
{
    if (CB_UNLIKELY(__atomic_load_n(&cb_pools_used, __ATOMIC_RELAXED))) cb_pools_refresh(-1);
}

#endif
