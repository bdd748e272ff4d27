/*
 * Spilling: managed memory for allocations beyond the card's part of a slice.
 *
 * Theory of operation. A slice that spills has a part of the card, and more memory than that. Allocations take
 * memory of the card as long as they stay within memory_limit_bytes, and managed memory beyond: the driver
 * brings its pages to the card when kernels touch them and evicts others. memory_limit_bytes is less than the
 * slice's part of the card: as much as may spill is left free for migrated pages, so that all of a program's
 * pages fit on the card during its time windows. Contexts, arrays, pools, mapped and graph memory cannot be
 * paged; they may use all of the part.
 *
 * Programs see no difference, except for three operations that a driver does not support for managed memory,
 * and which return CUDA_ERROR_NOT_SUPPORTED: an IPC handle, an export of an address range, and stream-ordered
 * freeing while a graph is captured. Stream-ordered allocations that do not fit in a pool are managed memory
 * beside the pool.
 */
#include "shim/spill.h"

#include "shim/charge.h"
#include "shim/device.h"
#include "shim/ledger.h"
#include "shim/pool.h"
#include "shim/real.h"
#include "shim/start.h"

#include <stdlib.h>

static int memory_beside_pools; /* set once a stream-ordered allocation is managed memory */

/* Report an operation that is not supported for spilled memory, if CALABASH_VERBOSE is set. */
static void report_refused(const char *what)
{
    if (getenv("CALABASH_VERBOSE") == NULL) return;
    cb_say("%s; hint: ask for a slice with less --spill, see docs/how-to/spill.md", what);
}

/*
 * Return true if kernels may touch managed memory while the host does: without that, data is copied and not
 * paged.
 */
static bool device_can_page(CUdevice ordinal)
{
    int can = 0;
    if (CB_REAL(cuDeviceGetAttribute) != NULL)
        (void)CB_REAL(cuDeviceGetAttribute)(&can, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, ordinal);
    return can != 0;
}

static CUdevice current_ordinal(void)
{
    CUdevice ordinal = 0;
    if (CB_REAL(cuCtxGetDevice) != NULL) (void)CB_REAL(cuCtxGetDevice)(&ordinal);
    return ordinal;
}

/*
 * Advise the driver to keep the pages on the card and to bring them back when they are touched. A hint: errors
 * are ignored.
 */
static void memory_prefer_card(CUdeviceptr address, size_t bytes, CUdevice ordinal)
{
    if (CB_REAL(cuMemAdvise_v2) != NULL) {
        CUmemLocation card = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal};
        (void)CB_REAL(cuMemAdvise_v2)(address, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, card);
    } else if (CB_REAL(cuMemAdvise) != NULL) {
        (void)CB_REAL(cuMemAdvise)(address, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, ordinal);
    }
}

static CUresult managed_allocate(CUdeviceptr *dptr, size_t bytesize)
{
    CUdevice ordinal = current_ordinal();
    if (!device_can_page(ordinal)) {
        report_refused("this card cannot page memory, so nothing is given beyond it");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = CB_REAL(cuMemAllocManaged)(dptr, bytesize, CU_MEM_ATTACH_GLOBAL);
    if (result == CUDA_SUCCESS) memory_prefer_card(*dptr, bytesize, ordinal);
    return result;
}

CUresult cb_spill(struct cb_allocation *allocation, CUdeviceptr *dptr, size_t bytesize)
{
    if (!cb_reserve_beyond(&allocation->device, allocation->bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result;
    if (allocation->device >= 0)
        CB_CALL_DRIVER(result, CB_REAL(cuMemAlloc_v2)(dptr, bytesize));
    else
        result = managed_allocate(dptr, bytesize);
    cb_allocation_end(allocation, result, CB_LINEAR, result == CUDA_SUCCESS ? *dptr : 0);
    return result;
}

CUresult cb_spill_managed(struct cb_allocation *allocation, CUdeviceptr *dptr, size_t bytesize,
                          unsigned int flags)
{
    if (!cb_reserve_beyond(&allocation->device, allocation->bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result;
    CB_CALL_DRIVER(result, CB_REAL(cuMemAllocManaged)(dptr, bytesize, flags));
    cb_allocation_end(allocation, result, CB_LINEAR, result == CUDA_SUCCESS ? *dptr : 0);
    return result;
}

CUresult cb_spill_beside_pool(CUdeviceptr *dptr, size_t bytesize, int device)
{
    struct cb_allocation allocation = {.device = device, .bytes = cb_cost(bytesize)};
    if (!cb_spills(device)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = cb_spill(&allocation, dptr, bytesize);
    if (result == CUDA_SUCCESS) __atomic_store_n(&memory_beside_pools, 1, __ATOMIC_RELAXED);
    return result;
}

/* Free managed memory that the program takes for a pool's, when the stream has come to it. */
static __attribute__((cold, noinline)) CUresult managed_free_in_stream(
    CUdeviceptr dptr, CUstream stream, CUresult (*free)(CUdeviceptr, CUstream),
    CUresult (*synchronize)(CUstream), CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus *))
{
    struct cb_entry entry;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!cb_ledger_get(CB_LINEAR, dptr, &entry)) return free(dptr, stream);
    if (is_capturing != NULL && is_capturing(stream, &status) == CUDA_SUCCESS &&
        status != CU_STREAM_CAPTURE_STATUS_NONE) {
        report_refused("memory beyond the card cannot be freed by a graph");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUresult result = synchronize(stream);
    return result == CUDA_SUCCESS ? cuMemFree_v2(dptr) : result;
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    CB_ENTER();
    if (CB_LIKELY(!__atomic_load_n(&memory_beside_pools, __ATOMIC_RELAXED)))
        return CB_REAL(cuMemFreeAsync)(dptr, hStream);
    return managed_free_in_stream(dptr, hStream, CB_REAL(cuMemFreeAsync), CB_REAL(cuStreamSynchronize),
                                  CB_REAL(cuStreamIsCapturing));
}

CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream)
{
    CB_ENTER();
    if (CB_LIKELY(!__atomic_load_n(&memory_beside_pools, __ATOMIC_RELAXED)))
        return CB_REAL(cuMemFreeAsync_ptsz)(dptr, hStream);
    return managed_free_in_stream(dptr, hStream, CB_REAL(cuMemFreeAsync_ptsz),
                                  CB_REAL(cuStreamSynchronize_ptsz), CB_REAL(cuStreamIsCapturing_ptsz));
}

/* ---- operations that managed memory does not support ---- */

static bool address_is_pageable(CUdeviceptr dptr)
{
    struct cb_entry entry;
    return cb_ledger_get(CB_LINEAR, dptr, &entry) && entry.device < -1;
}

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    CB_ENTER();
    if (!address_is_pageable(dptr)) return CB_REAL(cuIpcGetMemHandle)(pHandle, dptr);
    report_refused("memory beyond the card has no IPC handle");
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult CUDAAPI cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size,
                                               CUmemRangeHandleType handleType, unsigned long long flags)
{
    CB_ENTER();
    if (!address_is_pageable(dptr))
        return CB_REAL(cuMemGetHandleForAddressRange)(handle, dptr, size, handleType, flags);
    report_refused("memory beyond the card cannot be exported");
    return CUDA_ERROR_NOT_SUPPORTED;
}

static void spill_after_fork(void)
{
    memory_beside_pools = 0;
}
CB_AT_FORK(spill_after_fork);
