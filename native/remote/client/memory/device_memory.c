/*
 * Device memory: the worker assigns the addresses, and our ranges are recorded, so that copies need no
 * question.
 */
#include "remote/client/memory/device_memory.h"
#include "remote/client/connection/call.h"
#include "remote/client/memory/managed_memory.h"
#include "remote/client/memory/memory_ranges.h"
#include "remote_wrapped.h"

static CUresult range_record(CUresult result, const CUdeviceptr *dptr, size_t bytes, enum cb_memory memory)
{
    if (result == CUDA_SUCCESS && !cb_range_add(*dptr, bytes, memory, 0)) {
        cb_remote_cuMemFree_v2(*dptr);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    return range_record(cb_remote_cuMemAlloc_v2(dptr, bytesize), dptr, bytesize, CB_MEMORY_DEVICE);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                                   unsigned int ElementSizeBytes)
{
    CUresult result = cb_remote_cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
    return range_record(result, dptr, result == CUDA_SUCCESS ? *pPitch * Height : 0, CB_MEMORY_DEVICE);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    return range_record(cb_remote_cuMemAllocAsync(dptr, bytesize, hStream), dptr, bytesize, CB_MEMORY_POOL);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                        CUstream hStream)
{
    CUresult result = cb_remote_cuMemAllocFromPoolAsync(dptr, bytesize, pool, hStream);
    return range_record(result, dptr, bytesize, CB_MEMORY_POOL);
}

static bool range_is_at(CUdeviceptr p, struct cb_range *r)
{
    return cb_range_of(p, r) && r->address == p && !cb_memory_is_host(r->memory);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    struct cb_range r;
    bool known = range_is_at(dptr, &r);
    if (known && r.memory == CB_MEMORY_MANAGED) CB_OK(cuCtxSynchronize());
    if (known) cb_range_drop(dptr, NULL); /* before another thread is given the address */
    if (known && r.memory == CB_MEMORY_MANAGED) cb_managed_end(&r);
    return cb_remote_cuMemFree_v2(dptr);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    struct cb_range r;
    bool known = range_is_at(dptr, &r);
    if (known && r.memory == CB_MEMORY_MANAGED) CB_OK(cuStreamSynchronize(hStream));
    CUresult result = cb_remote_cuMemFreeAsync(dptr, hStream);
    if (result != CUDA_SUCCESS || !known) return result;
    cb_range_drop(dptr, NULL);
    if (r.memory == CB_MEMORY_MANAGED) cb_managed_end(&r);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    struct cb_range r;
    CUcontext context = NULL;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!cb_range_of(dptr, &r)) return cb_remote_cuMemGetAddressRange_v2(pbase, psize, dptr);
    if (pbase) *pbase = r.address;
    if (psize) *psize = r.bytes;
    return CUDA_SUCCESS;
}

/* A context's device memory is freed with it; pinned memory belongs to the process. */
void cb_memory_context_ends(CUcontext context)
{
    struct cb_range r;
    while (cb_range_of_context(context, &r)) {
        cb_range_drop(r.address, NULL);
        if (r.memory == CB_MEMORY_MANAGED) cb_managed_end(&r);
    }
}
