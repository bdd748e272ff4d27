/*
 * Hooks of linear memory: cuMemAlloc in its two versions, pitched and managed memory, and freeing.
 *
 * Every family is handled in the same way: reserve what the driver will take, call the driver, then either
 * record the pointer or return the reservation. Managed memory counts in full: the program may bring all of it
 * to the device at once. Pinned host memory does not count. If a slice may have more than fits on the card,
 * spill.c takes over when the card's part is used up.
 */
#include "shim/base.h"

#include "shim/allocation.h"
#include "shim/charge.h"
#include "shim/ledger.h"
#include "shim/pool.h"
#include "shim/real.h"
#include "shim/spill.h"
#include "shim/start.h"

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    struct cb_allocation allocation;
    CB_ENTER();
    if (!cb_allocation_linear(&allocation, bytesize)) return cb_spill(&allocation, dptr, bytesize);
    CUresult result;
    CB_CALL_DRIVER(result, CB_REAL(cuMemAlloc_v2)(dptr, bytesize));
    cb_allocation_end(&allocation, result, CB_LINEAR, result == CUDA_SUCCESS ? *dptr : 0);
    return result;
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize)
{
    struct cb_allocation allocation;
    CB_ENTER();
    if (!cb_allocation_begin(&allocation, bytesize)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result;
    CB_CALL_DRIVER(result, CB_REAL(cuMemAlloc)(dptr, bytesize));
    cb_allocation_end(&allocation, result, CB_LINEAR, result == CUDA_SUCCESS ? *dptr : 0);
    return result;
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    struct cb_allocation allocation;
    CB_ENTER();
    if (!cb_allocation_linear(&allocation, bytesize))
        return cb_spill_managed(&allocation, dptr, bytesize, flags);
    CUresult result;
    CB_CALL_DRIVER(result, CB_REAL(cuMemAllocManaged)(dptr, bytesize, flags));
    cb_allocation_end(&allocation, result, CB_LINEAR, result == CUDA_SUCCESS ? *dptr : 0);
    return result;
}

/* Rows are at least this far apart on every card so far; the driver's actual pitch is known after the call. */
#define PITCH_BYTES 512u

static uint64_t pitched_bytes(uint64_t width, uint64_t height)
{
    uint64_t pitch = (width + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES, bytes;
    return __builtin_mul_overflow(pitch, height, &bytes) ? UINT64_MAX : bytes;
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                                    unsigned int ElementSizeBytes)
{
    struct cb_allocation allocation;
    CB_ENTER();
    if (!cb_allocation_linear(&allocation, pitched_bytes(WidthInBytes, Height))) {
        CUresult spilled = cb_spill(&allocation, dptr, pitched_bytes(WidthInBytes, Height));
        if (spilled == CUDA_SUCCESS) *pPitch = pitched_bytes(WidthInBytes, 1);
        return spilled;
    }
    CUresult result;
    CB_CALL_DRIVER(result, CB_REAL(cuMemAllocPitch_v2)(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes));
    if (result == CUDA_SUCCESS && !cb_allocation_resize(&allocation, *pPitch * Height)) {
        (void)CB_REAL(cuMemFree_v2)(*dptr);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    cb_allocation_end(&allocation, result, CB_LINEAR, result == CUDA_SUCCESS ? *dptr : 0);
    return result;
}

CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes,
                                 unsigned int Height, unsigned int ElementSizeBytes)
{
    struct cb_allocation allocation;
    CB_ENTER();
    if (!cb_allocation_begin(&allocation, pitched_bytes(WidthInBytes, Height)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result;
    CB_CALL_DRIVER(result, CB_REAL(cuMemAllocPitch)(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes));
    if (result == CUDA_SUCCESS && !cb_allocation_resize(&allocation, (uint64_t)*pPitch * Height)) {
        (void)CB_REAL(cuMemFree)(*dptr);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    cb_allocation_end(&allocation, result, CB_LINEAR, result == CUDA_SUCCESS ? *dptr : 0);
    return result;
}

/* The entry is removed before the driver frees: afterwards another thread may own the same address. */
#define FREE(kind, key, call)                                   \
    do {                                                        \
        struct cb_entry entry;                                  \
        bool known = cb_ledger_take(kind, key, &entry);         \
        CUresult result = call;                                 \
        if (known && result == CUDA_SUCCESS)                    \
            cb_uncharge(entry.device, entry.bytes);             \
        else if (known)                                         \
            (void)cb_ledger_put(&entry);                        \
        else                                                    \
            cb_pools_settle(); /* it may be memory of a pool */ \
        return result;                                          \
    } while (0)

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr dptr)
{
    CB_ENTER();
    FREE(CB_LINEAR, dptr, CB_REAL(cuMemFree_v2)(dptr));
}

CUresult CUDAAPI cuMemFree(CUdeviceptr_v1 dptr)
{
    CB_ENTER();
    FREE(CB_LINEAR, dptr, CB_REAL(cuMemFree)(dptr));
}

CUresult CUDAAPI cuArrayDestroy(CUarray hArray)
{
    CB_ENTER();
    FREE(CB_ARRAY, (uint64_t)(uintptr_t)hArray, CB_REAL(cuArrayDestroy)(hArray));
}

CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
    CB_ENTER();
    FREE(CB_MIPMAP, (uint64_t)(uintptr_t)hMipmappedArray, CB_REAL(cuMipmappedArrayDestroy)(hMipmappedArray));
}
