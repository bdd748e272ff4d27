/*
 * Linear memory: cuMemAlloc in its two versions, pitched and managed memory, and freeing.
 *
 * The claim of one allocation is the same for every family: reserve what the driver will take, call the
 * driver, then either remember the pointer or give everything back. Managed memory counts in full: the
 * program may bring all of it to the device at once. Pinned host memory does not count.
 */
#include "shim/shim.h"

bool cb_claim_begin(struct cb_claim *claim, uint64_t bytes)
{
    claim->device = cb_device_charged(cb_device_current());
    claim->bytes = cb_cost(bytes);
    claim->context = 0;
    return cb_reserve(claim->device, claim->bytes);
}

bool cb_claim_resize(struct cb_claim *claim, uint64_t bytes)
{
    uint64_t cost = cb_cost(bytes);
    if (cost == claim->bytes) return true;
    if (!cb_true_up(claim->device, claim->bytes, cost)) return false;
    if (claim->device >= 0) /* the reservation still under way has changed its size as well */
        __atomic_fetch_add(&cb.proc->reserving_bytes[claim->device], cost - claim->bytes, __ATOMIC_RELAXED);
    claim->bytes = cost;
    return true;
}

void cb_claim_end(struct cb_claim *claim, CUresult result, uint32_t kind, uint64_t key)
{
    if (claim->device < 0) return;
    if (result != CUDA_SUCCESS) {
        cb_cancel(claim->device, claim->bytes);
        return;
    }
    CUcontext context = NULL;
    if (CB_REAL(cuCtxGetCurrent) != NULL) (void)CB_REAL(cuCtxGetCurrent)(&context);
    struct cb_entry entry = {.key = key,
                             .bytes = claim->bytes,
                             .context = (uint64_t)(uintptr_t)context,
                             .device = claim->device,
                             .kind = kind};
    (void)cb_ledger_put(&entry); /* without host memory the charge stays until the process ends */
    cb_commit(claim->device, claim->bytes);
}

void cb_claim_release(uint32_t kind, uint64_t key)
{
    struct cb_entry entry;
    if (cb_ledger_take(kind, key, &entry)) cb_uncharge(entry.device, entry.bytes);
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    struct cb_claim claim;
    CB_ENTER();
    if (!cb_claim_begin(&claim, bytesize)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result;
    CB_CALL_DRIVER(result, CB_REAL(cuMemAlloc_v2)(dptr, bytesize));
    cb_claim_end(&claim, result, CB_LINEAR, result == CUDA_SUCCESS ? *dptr : 0);
    return result;
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize)
{
    struct cb_claim claim;
    CB_ENTER();
    if (!cb_claim_begin(&claim, bytesize)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result;
    CB_CALL_DRIVER(result, CB_REAL(cuMemAlloc)(dptr, bytesize));
    cb_claim_end(&claim, result, CB_LINEAR, result == CUDA_SUCCESS ? *dptr : 0);
    return result;
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    struct cb_claim claim;
    CB_ENTER();
    if (!cb_claim_begin(&claim, bytesize)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result;
    CB_CALL_DRIVER(result, CB_REAL(cuMemAllocManaged)(dptr, bytesize, flags));
    cb_claim_end(&claim, result, CB_LINEAR, result == CUDA_SUCCESS ? *dptr : 0);
    return result;
}

/* Rows are at least this far apart on every card so far; what the driver really chose is known after the
 * call. */
#define PITCH_BYTES 512u

static uint64_t pitched(uint64_t width, uint64_t height)
{
    uint64_t pitch = (width + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES, bytes;
    return __builtin_mul_overflow(pitch, height, &bytes) ? UINT64_MAX : bytes;
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                                    unsigned int ElementSizeBytes)
{
    struct cb_claim claim;
    CB_ENTER();
    if (!cb_claim_begin(&claim, pitched(WidthInBytes, Height))) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result;
    CB_CALL_DRIVER(result, CB_REAL(cuMemAllocPitch_v2)(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes));
    if (result == CUDA_SUCCESS && !cb_claim_resize(&claim, *pPitch * Height)) {
        (void)CB_REAL(cuMemFree_v2)(*dptr);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    cb_claim_end(&claim, result, CB_LINEAR, result == CUDA_SUCCESS ? *dptr : 0);
    return result;
}

CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes,
                                 unsigned int Height, unsigned int ElementSizeBytes)
{
    struct cb_claim claim;
    CB_ENTER();
    if (!cb_claim_begin(&claim, pitched(WidthInBytes, Height))) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result;
    CB_CALL_DRIVER(result, CB_REAL(cuMemAllocPitch)(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes));
    if (result == CUDA_SUCCESS && !cb_claim_resize(&claim, (uint64_t)*pPitch * Height)) {
        (void)CB_REAL(cuMemFree)(*dptr);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    cb_claim_end(&claim, result, CB_LINEAR, result == CUDA_SUCCESS ? *dptr : 0);
    return result;
}

/* The entry is taken before the driver frees: afterwards another thread may own the same address. */
#define FREE(kind, key, call)                                     \
    do {                                                          \
        struct cb_entry entry;                                    \
        bool known = cb_ledger_take(kind, key, &entry);           \
        CUresult result = call;                                   \
        if (known && result == CUDA_SUCCESS)                      \
            cb_uncharge(entry.device, entry.bytes);               \
        else if (known)                                           \
            (void)cb_ledger_put(&entry);                          \
        else                                                      \
            cb_pools_settle(); /* it may have come from a pool */ \
        return result;                                            \
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
