/*
 * Hooks of arrays and mipmapped arrays.
 *
 * The driver reports an array's true size (cuArrayGetMemoryRequirements) only for arrays whose memory is bound
 * later, and those take none when they are created: sparse and deferred arrays are charged nothing here, their
 * memory comes from cuMemCreate. For all others the size follows from the descriptor; what tiling adds is in
 * the agent's residual.
 */
#include "shim/base.h"

#include "shim/allocation.h"
#include "shim/charge.h"
#include "shim/ledger.h"
#include "shim/real.h"
#include "shim/start.h"

static uint64_t format_bytes(CUarray_format format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    default:
        return 4; /* packed and block-compressed formats need no more than this for each texel */
    }
}

static uint64_t at_least_one(uint64_t value)
{
    return value == 0 ? 1 : value;
}

static uint64_t texel_bytes(uint64_t width, uint64_t height, uint64_t depth, uint64_t bytes)
{
    uint64_t product;
    if (__builtin_mul_overflow(width, at_least_one(height), &product) ||
        __builtin_mul_overflow(product, at_least_one(depth), &product) ||
        __builtin_mul_overflow(product, bytes, &product))
        return UINT64_MAX / 2;
    return product;
}

static bool memory_is_bound_later(unsigned int flags)
{
    return (flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0;
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    return texel_bytes(d->Width, d->Height, d->Depth, at_least_one(d->NumChannels) * format_bytes(d->Format));
}

/* A lower bound whether the driver places the levels as one block or separately. */
static uint64_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
    uint64_t width = d->Width, height = d->Height, depth = d->Depth, total = 0;
    uint64_t texel = at_least_one(d->NumChannels) * format_bytes(d->Format);
    bool layered = (d->Flags & CUDA_ARRAY3D_LAYERED) != 0;
    for (unsigned int level = 0; level < levels && level < 32; level++) {
        if (__builtin_add_overflow(total, cb_cost(texel_bytes(width, height, depth, texel)), &total))
            return UINT64_MAX / 2;
        width = at_least_one(width / 2);
        height = height > 1 ? height / 2 : height;
        depth = depth > 1 && !layered ? depth / 2 : depth;
    }
    return total;
}

#define CREATE(kind, size, call)                                                       \
    do {                                                                               \
        struct cb_allocation allocation;                                               \
        if (!cb_allocation_begin(&allocation, size)) return CUDA_ERROR_OUT_OF_MEMORY;  \
        CUresult result;                                                               \
        CB_CALL_DRIVER(result, call);                                                  \
        cb_allocation_end(&allocation, result, kind,                                   \
                          result == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*pHandle : 0); \
        return result;                                                                 \
    } while (0)

CUresult CUDAAPI cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
    CB_ENTER();
    const CUDA_ARRAY_DESCRIPTOR *d = pAllocateArray;
    if (pHandle == NULL || d == NULL) return CB_REAL(cuArrayCreate_v2)(pHandle, d);
    CREATE(CB_ARRAY,
           texel_bytes(d->Width, d->Height, 1, at_least_one(d->NumChannels) * format_bytes(d->Format)),
           CB_REAL(cuArrayCreate_v2)(pHandle, d));
}

CUresult CUDAAPI cuArrayCreate(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *pAllocateArray)
{
    CB_ENTER();
    const CUDA_ARRAY_DESCRIPTOR_v1 *d = pAllocateArray;
    if (pHandle == NULL || d == NULL) return CB_REAL(cuArrayCreate)(pHandle, d);
    CREATE(CB_ARRAY,
           texel_bytes(d->Width, d->Height, 1, at_least_one(d->NumChannels) * format_bytes(d->Format)),
           CB_REAL(cuArrayCreate)(pHandle, d));
}

CUresult CUDAAPI cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
    CB_ENTER();
    const CUDA_ARRAY3D_DESCRIPTOR *d = pAllocateArray;
    if (pHandle == NULL || d == NULL || memory_is_bound_later(d->Flags))
        return CB_REAL(cuArray3DCreate_v2)(pHandle, d);
    CREATE(CB_ARRAY, array_bytes(d), CB_REAL(cuArray3DCreate_v2)(pHandle, d));
}

CUresult CUDAAPI cuArray3DCreate(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *pAllocateArray)
{
    CB_ENTER();
    const CUDA_ARRAY3D_DESCRIPTOR_v1 *d = pAllocateArray;
    if (pHandle == NULL || d == NULL || memory_is_bound_later(d->Flags))
        return CB_REAL(cuArray3DCreate)(pHandle, d);
    CREATE(CB_ARRAY,
           texel_bytes(d->Width, d->Height, d->Depth, at_least_one(d->NumChannels) * format_bytes(d->Format)),
           CB_REAL(cuArray3DCreate)(pHandle, d));
}

CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray *pHandle,
                                        const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                        unsigned int numMipmapLevels)
{
    CB_ENTER();
    const CUDA_ARRAY3D_DESCRIPTOR *d = pMipmappedArrayDesc;
    if (pHandle == NULL || d == NULL || memory_is_bound_later(d->Flags))
        return CB_REAL(cuMipmappedArrayCreate)(pHandle, d, numMipmapLevels);
    CREATE(CB_MIPMAP, mipmap_bytes(d, numMipmapLevels),
           CB_REAL(cuMipmappedArrayCreate)(pHandle, d, numMipmapLevels));
}
