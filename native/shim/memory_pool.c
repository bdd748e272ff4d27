/* Hooks of stream-ordered allocation and of the program's pools; pool.c charges them. */
#include "shim/base.h"

#include "shim/charge.h"
#include "shim/device.h"
#include "shim/pool.h"
#include "shim/real.h"
#include "shim/spill.h"
#include "shim/start.h"

/* An allocation that becomes a node of a graph under capture takes no memory now. */
static bool stream_is_capturing(CUstream stream, CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus *))
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return is_capturing != NULL && is_capturing(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/*
 * Wait for frees that are still pending in the stream: they hold memory, and a driver that is short of it waits
 * for them too.
 */
static bool stream_wait_for_frees(CUstream stream, CUresult (*synchronize)(CUstream))
{
    /* so that another thread's capture is not invalidated */
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool exchanged = CB_REAL(cuThreadExchangeStreamCaptureMode) != NULL &&
                     CB_REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
    CUresult result = synchronize(stream);
    if (exchanged) (void)CB_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return result == CUDA_SUCCESS;
}

/* Answer a refused pool allocation: a slice that spills has memory for it beside the pool. */
static __attribute__((cold, noinline)) CUresult pool_refusal(CUdeviceptr *dptr, size_t bytesize,
                                                             const struct cb_pool *from)
{
    if (cb_spill_beside_pool(dptr, bytesize, cb_pool_device(from)) == CUDA_SUCCESS) return CUDA_SUCCESS;
    return cb_pool_refused(from);
}

#define ALLOCATE(pool, suffix, call)                                                            \
    do {                                                                                        \
        struct cb_pool *from =                                                                  \
            stream_is_capturing(hStream, CB_REAL(cuStreamIsCapturing##suffix)) ? NULL : (pool); \
        if (from == NULL || cb_pool_device(from) < 0) return call;                              \
        if (!cb_pool_begin(from, bytesize, false) &&                                            \
            !(stream_wait_for_frees(hStream, CB_REAL(cuStreamSynchronize##suffix)) &&           \
              cb_pool_begin(from, bytesize, false)))                                            \
            return pool_refusal(dptr, bytesize, from);                                          \
        CUresult result;                                                                        \
        CB_CALL_DRIVER(result, call);                                                           \
        if (!cb_pool_end(from) && result == CUDA_SUCCESS) {                                     \
            (void)CB_REAL(cuMemFree_v2)(*dptr);                                                 \
            cb_pools_trim(cb_pool_device(from));                                                \
            result = cb_pool_refused(from);                                                     \
        }                                                                                       \
        return result;                                                                          \
    } while (0)

static CUdevice current_ordinal(void)
{
    CUdevice ordinal = -1;
    return CB_REAL(cuCtxGetDevice)(&ordinal) == CUDA_SUCCESS ? ordinal : -1;
}

static struct cb_pool *current_pool(void)
{
    CUmemoryPool handle = NULL;
    CUdevice ordinal = current_ordinal();
    if (ordinal < 0 || CB_REAL(cuDeviceGetMemPool) == NULL ||
        CB_REAL(cuDeviceGetMemPool)(&handle, ordinal) != CUDA_SUCCESS || handle == NULL)
        return NULL;
    return cb_pool_of(handle, ordinal, cb_device_charged(cb_device_of(ordinal)));
}

/*
 * Find a pool by its handle: as recorded by cuMemPoolCreate, else (a default or imported pool) of the current
 * device.
 */
static struct cb_pool *pool_by_handle(CUmemoryPool handle)
{
    struct cb_pool *known = cb_pool_known(handle);
    if (known != NULL) return known;
    CUdevice ordinal = current_ordinal();
    return handle != NULL && ordinal >= 0
               ? cb_pool_of(handle, ordinal, cb_device_charged(cb_device_of(ordinal)))
               : NULL;
}

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    CB_ENTER();
    ALLOCATE(current_pool(), , CB_REAL(cuMemAllocAsync)(dptr, bytesize, hStream));
}

CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    CB_ENTER();
    ALLOCATE(current_pool(), _ptsz, CB_REAL(cuMemAllocAsync_ptsz)(dptr, bytesize, hStream));
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                         CUstream hStream)
{
    CB_ENTER();
    ALLOCATE(pool_by_handle(pool), , CB_REAL(cuMemAllocFromPoolAsync)(dptr, bytesize, pool, hStream));
}

CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                              CUstream hStream)
{
    CB_ENTER();
    ALLOCATE(pool_by_handle(pool), _ptsz,
             CB_REAL(cuMemAllocFromPoolAsync_ptsz)(dptr, bytesize, pool, hStream));
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    CB_ENTER();
    CUresult result = CB_REAL(cuMemPoolCreate)(pool, poolProps);
    if (result == CUDA_SUCCESS) {
        bool on_device = poolProps->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
        int ordinal = poolProps->location.id;
        (void)cb_pool_of(*pool, ordinal,
                         on_device ? cb_device_charged(cb_device_of(ordinal))
                                   : -1); /* pools of host memory are not charged */
    }
    return result;
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    CB_ENTER();
    CUresult result = CB_REAL(cuMemPoolTrimTo)(pool, minBytesToKeep);
    cb_pools_settle();
    return result;
}

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool)
{
    CB_ENTER();
    CUresult result = CB_REAL(cuMemPoolDestroy)(pool);
    if (result != CUDA_SUCCESS) return result;
    cb_pool_gone(pool);
    return result;
}

CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice device)
{
    CB_ENTER();
    CUresult result = CB_REAL(cuDeviceGraphMemTrim)(device);
    cb_pools_settle();
    return result;
}
