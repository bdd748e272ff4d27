/*
 * Charging of the driver's memory pools: stream-ordered allocations and the memory nodes of graphs.
 *
 * Theory of operation. The cost of a pool is what it has reserved from the card, not what the program holds of
 * it, and only the driver knows it: a pool grows in its own steps, keeps what is freed, and shrinks at
 * synchronisation. So each pool is charged RESERVED_MEM_CURRENT. A call that may make it grow first reserves
 * the request as if the pool were empty, calls, then reads the attribute and adjusts the charge to it, all but
 * the reservation under the pool's own lock: the growth seen is this call's. The reservation bounds it, so the
 * cap holds while the driver works; if a pool grows in larger steps than the request, the step is recorded and
 * used by the next reservations.
 *
 * Near the cap a request may be refused although the pool has room for it; then the pools are trimmed to what
 * is in use, which turns their free memory into free cap, and the reservation is tried again. Pools shrink
 * without a call of ours when the GPU catches up, so charges are read again after every synchronisation and
 * before they are reported.
 */
#include "shim/pool.h"

#include "shim/charge.h"
#include "shim/device.h"
#include "shim/real.h"
#include "shim/spin.h"

#include "page/charge.h"

#include <stdlib.h>

struct cb_pool {
    struct cb_pool *next;
    CUmemoryPool handle; /* NULL: the graph memory of `ordinal` */
    CUdevice ordinal;
    int device;
    int gone; /* destroyed; a new pool may get the same handle */
    cb_spin lock;
    uint64_t charged;
    uint64_t step; /* smallest growth seen that exceeded its request: the driver's rounding; 0: none seen */
};

int cb_pools_used;
static struct cb_pool *pools; /* grows at the front, never shrinks: read without a lock */
static cb_spin pools_lock;

static uint64_t pool_reserved_bytes(const struct cb_pool *pool)
{
    cuuint64_t bytes = 0;
    CUresult result;
    if (__atomic_load_n(&pool->gone, __ATOMIC_RELAXED)) return 0;
    if (pool->handle != NULL)
        result = CB_REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
    else
        result = CB_REAL(cuDeviceGetGraphMemAttribute)(pool->ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                                       &bytes);
    return result == CUDA_SUCCESS ? (bytes + 511) & ~511ull : 0;
}

struct cb_pool *cb_pool_of(CUmemoryPool handle, CUdevice ordinal, int device)
{
    struct cb_pool *pool;
    for (pool = __atomic_load_n(&pools, __ATOMIC_ACQUIRE); pool != NULL; pool = pool->next)
        if (pool->handle == handle && pool->ordinal == ordinal &&
            !__atomic_load_n(&pool->gone, __ATOMIC_RELAXED))
            return pool;
    cb_lock(&pools_lock);
    for (pool = pools; pool != NULL; pool = pool->next)
        if (pool->handle == handle && pool->ordinal == ordinal) break;
    if (pool != NULL) {
        __atomic_store_n(&pool->gone, 0, __ATOMIC_RELEASE);
    } else if ((pool = calloc(1, sizeof(*pool))) != NULL) {
        pool->handle = handle;
        pool->ordinal = ordinal;
        pool->device = device;
        pool->next = pools;
        __atomic_store_n(&pools, pool, __ATOMIC_RELEASE);
        __atomic_store_n(&cb_pools_used, 1, __ATOMIC_RELEASE);
    }
    cb_unlock(&pools_lock);
    return pool;
}

struct cb_pool *cb_pool_of_graphs(CUdevice ordinal)
{
    int device = cb_device_charged(cb_device_of(ordinal));
    return CB_REAL(cuDeviceGetGraphMemAttribute) != NULL && device >= 0 ? cb_pool_of(NULL, ordinal, device)
                                                                        : NULL;
}

/*
 * Adjust the charge to the pool's reserved memory. Requires the pool's lock; the pool can only have shrunk
 * since the last call.
 */
static void pool_adjust_charge(struct cb_pool *pool)
{
    uint64_t now = pool_reserved_bytes(pool);
    if (cb_true_up(pool->device, pool->charged, now)) pool->charged = now;
}

static __thread uint64_t reservation; /* of the call between cb_pool_begin and cb_pool_end */

/* Bytes that the pool has reserved and that are not in use. */
static uint64_t pool_free_bytes(const struct cb_pool *pool)
{
    cuuint64_t used = 0;
    CUresult result;
    if (pool->handle != NULL)
        result = CB_REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
    else
        result =
            CB_REAL(cuDeviceGetGraphMemAttribute)(pool->ordinal, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used);
    uint64_t charged = __atomic_load_n(&pool->charged, __ATOMIC_RELAXED);
    return result == CUDA_SUCCESS && charged > used ? charged - used : 0;
}

bool cb_pool_begin(struct cb_pool *pool, uint64_t bytes, bool may_reuse)
{
    uint64_t cost = cb_cost(bytes), step = __atomic_load_n(&pool->step, __ATOMIC_RELAXED);
    reservation = cost;
    if (step != 0 && cost <= CB_CHARGE_MAX - step) reservation = (cost + step - 1) / step * step;
    if (!cb_reserve_quietly(pool->device, reservation)) {
        /* Not enough for another step of growth, but the pool's free memory may suffice. */
        bool fits = reservation != cost && pool_free_bytes(pool) >= cost;
        reservation = cost;
        if (!fits || !cb_reserve_quietly(pool->device, reservation)) {
            if (!may_reuse || __atomic_load_n(&pool->charged, __ATOMIC_RELAXED) < bytes) return false;
            reservation = 0;
        }
    }
    cb_lock(&pool->lock);
    return true;
}

CUresult cb_pool_refused(const struct cb_pool *pool)
{
    cb_denied(pool->device);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

bool cb_pool_end(struct cb_pool *pool)
{
    uint64_t now = pool_reserved_bytes(pool), had = pool->charged + reservation;
    uint64_t grown = now > pool->charged ? now - pool->charged : 0;
    if (now > had && reservation != 0 && (pool->step == 0 || grown < pool->step))
        __atomic_store_n(&pool->step, grown, __ATOMIC_RELAXED);
    bool within = cb_true_up(pool->device, had, now);
    pool->charged = within ? now : had;
    cb_commit(pool->device, reservation);
    cb_unlock(&pool->lock);
    return within;
}

void cb_pools_refresh(int device)
{
    for (struct cb_pool *pool = __atomic_load_n(&pools, __ATOMIC_ACQUIRE); pool != NULL; pool = pool->next) {
        if (device >= 0 && pool->device != device) continue;
        cb_lock(&pool->lock);
        pool_adjust_charge(pool);
        cb_unlock(&pool->lock);
    }
}

void cb_pools_trim(int device)
{
    for (struct cb_pool *pool = __atomic_load_n(&pools, __ATOMIC_ACQUIRE); pool != NULL; pool = pool->next) {
        if (pool->device != device || __atomic_load_n(&pool->gone, __ATOMIC_RELAXED)) continue;
        cb_lock(&pool->lock);
        if (pool->handle != NULL)
            (void)CB_REAL(cuMemPoolTrimTo)(pool->handle, 0);
        else
            (void)CB_REAL(cuDeviceGraphMemTrim)(pool->ordinal);
        pool_adjust_charge(pool);
        cb_unlock(&pool->lock);
    }
}

static void pools_after_fork(void)
{
    pools = NULL;
    pools_lock.held = 0;
    cb_pools_used = 0;
}
CB_AT_FORK(pools_after_fork);

CB_ON_SHORTAGE(cb_pools_trim);

/* Find a pool by its handle, as recorded at its creation. */
struct cb_pool *cb_pool_known(CUmemoryPool handle)
{
    for (struct cb_pool *pool = __atomic_load_n(&pools, __ATOMIC_ACQUIRE); pool != NULL; pool = pool->next)
        if (pool->handle == handle && handle != NULL && !__atomic_load_n(&pool->gone, __ATOMIC_RELAXED))
            return pool;
    return NULL;
}

void cb_pool_gone(CUmemoryPool handle)
{
    for (struct cb_pool *known = __atomic_load_n(&pools, __ATOMIC_ACQUIRE); known != NULL;
         known = known->next) {
        if (known->handle != handle || __atomic_load_n(&known->gone, __ATOMIC_RELAXED)) continue;
        /* Allocations that outlive their pool are in the agent's residual from here on. */
        cb_lock(&known->lock);
        __atomic_store_n(&known->gone, 1, __ATOMIC_RELEASE);
        pool_adjust_charge(known);
        cb_unlock(&known->lock);
    }
}

int cb_pool_device(const struct cb_pool *pool)
{
    return pool->device;
}
