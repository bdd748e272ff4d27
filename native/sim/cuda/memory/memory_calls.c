/* Driver calls that allocate and free linear memory, and that query an address. */
#include "sim/cuda/context/context.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/graph/graph_memory.h"
#include "sim/cuda/memory/address_space.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/memory/memory_pool.h"
#include "sim/cuda/memory/registered_memory.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/process.h"
#include "sim/cuda/stream/stream_work.h"
#include "sim/node/slot.h"
#include "sim/node/state.h"

/* ---- registered host memory: few ranges, sorted by address ---- */

/* ---- access rights ---- */

/* ---- allocation ---- */

static CUresult memory_allocate(CUdeviceptr *out, uint64_t bytes, enum memory memory, bool host,
                                unsigned int flags)
{
    struct context *c;
    struct range *r;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    result = capture_forbids();
    if (result == CUDA_SUCCESS) result = memory_take(c, host ? NULL : c->device, bytes, memory, &r);
    if (result != CUDA_SUCCESS) return result;
    r->flags = flags;
    *out = r->base;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    return memory_allocate(dptr, bytesize, MEMORY_DEVICE, false, 0);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                                   unsigned int ElementSizeBytes)
{
    if (!dptr || !pPitch || WidthInBytes == 0 || Height == 0) return CUDA_ERROR_INVALID_VALUE;
    if (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16)
        return CUDA_ERROR_INVALID_VALUE;
    if (WidthInBytes > 1ull << 40 || Height > 1ull << 40) return CUDA_ERROR_INVALID_VALUE;
    uint64_t pitch = sim_round_up(WidthInBytes, 512), bytes;
    if (__builtin_mul_overflow(pitch, Height, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = memory_allocate(dptr, bytes, MEMORY_DEVICE, false, 0);
    if (result == CUDA_SUCCESS) *pPitch = pitch;
    return result;
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    unsigned int kind = flags & 7u;
    if (kind != CU_MEM_ATTACH_GLOBAL && kind != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
    return memory_allocate(dptr, bytesize, MEMORY_MANAGED, false, flags);
}

EXPORT CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    if (!pp || (Flags & ~7u)) return CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr p = 0;
    CUresult result = memory_allocate(&p, bytesize, MEMORY_HOST, true, Flags);
    if (result == CUDA_SUCCESS) *pp = (void *)p;
    return result;
}

EXPORT CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    return cuMemHostAlloc(pp, bytesize, 0);
}

static CUresult range_release(uint64_t base, bool host)
{
    memory_lock();
    struct range *r = range_find(base);
    if (r && r->memory == MEMORY_GRAPH && r->base == base && !host) {
        memory_unlock();
        return graph_memory_free(r) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    bool right = r && r->base == base && !r->owner && !r->pending_free && !r->freeing;
    if (right && host) right = r->memory == MEMORY_HOST;
    if (right && !host)
        right = r->memory == MEMORY_DEVICE || r->memory == MEMORY_MANAGED || r->memory == MEMORY_POOL;
    if (right) r->pending_free = true; /* of two concurrent frees of an address the second fails here */
    memory_unlock();
    if (!right) return CUDA_ERROR_INVALID_VALUE;
    if (r->pool)
        pool_drop(r);
    else
        memory_drop(r);
    return CUDA_SUCCESS;
}

static CUresult memory_free(uint64_t base, bool host)
{
    struct context *c;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    if (!base) return CUDA_SUCCESS;
    result = capture_forbids();
    if (result == CUDA_SUCCESS) result = context_synchronize(c);
    return result != CUDA_SUCCESS ? result : range_release(base, host);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    return memory_free(dptr, false);
}

EXPORT CUresult cuMemFreeHost(void *p)
{
    return memory_free((uint64_t)p, true);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    CONTEXT_OR_RETURN(c);
    if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
    sim_sweep(&process.sim, 1000000ull);
    device_total(c->device, total);
    const struct device *d = c->device;
    uint64_t used = d->instance >= 0 ? d->shared->mig.gi[d->instance].used_bytes
                                     : __atomic_load_n(&d->shared->used_bytes, __ATOMIC_RELAXED);
    *free = used < *total ? *total - used : 0;
    return CUDA_SUCCESS;
}

/* ---- queries of an address ---- */

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    CONTEXT_OR_RETURN(c);
    memory_lock();
    const struct range *r = range_find_any(dptr);
    if (r && r->memory == MEMORY_RESERVED) r = NULL;
    if (r) {
        if (pbase) *pbase = r->base;
        if (psize) *psize = r->size;
    }
    memory_unlock();
    return r ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    CONTEXT_OR_RETURN(c);
    if (!pdptr || Flags) return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    const struct range *r = range_find_any((uint64_t)p);
    bool ok =
        r && (r->memory == MEMORY_HOST || r->memory == MEMORY_REGISTERED || r->memory == MEMORY_MANAGED);
    memory_unlock();
    if (!ok) return CUDA_ERROR_INVALID_VALUE;
    *pdptr = (CUdeviceptr)p;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
    CONTEXT_OR_RETURN(c);
    if (!pFlags) return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    const struct range *r = range_find_any((uint64_t)p);
    bool ok = r && (r->memory == MEMORY_HOST || r->memory == MEMORY_REGISTERED);
    if (ok) *pFlags = r->flags | CU_MEMHOSTALLOC_DEVICEMAP;
    memory_unlock();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUmemLocation location)
{
    struct context *c;
    CUresult result = context_enter(&c);
    (void)advice;
    (void)location;
    if (result != CUDA_SUCCESS) return result;
    memory_lock();
    const struct range *r = range_find_any(devPtr);
    bool ok = count && r && r->memory == MEMORY_MANAGED && devPtr + count <= r->base + r->size;
    memory_unlock();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device)
{
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    return cuMemAdvise_v2(devPtr, count, advice, location);
}
