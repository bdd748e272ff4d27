/* Device memory: the worker gives addresses, and what is ours is remembered, so that copies need no question. */
#include "remote/client/object.h"
#include "remote/client/range.h"
#include "remote/client/session.h"
#include "remote_wrapped.h"

static CUresult remember(CUresult result, const CUdeviceptr *dptr, size_t bytes)
{
    if (result == CUDA_SUCCESS && !cb_range_add(*dptr, bytes, CB_MEMORY_DEVICE, 0)) {
        cb_remote_cuMemFree_v2(*dptr);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    return remember(cb_remote_cuMemAlloc_v2(dptr, bytesize), dptr, bytesize);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                                   unsigned int ElementSizeBytes)
{
    CUresult result = cb_remote_cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
    return remember(result, dptr, result == CUDA_SUCCESS ? *pPitch * Height : 0);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    return remember(cb_remote_cuMemAllocAsync(dptr, bytesize, hStream), dptr, bytesize);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                        CUstream hStream)
{
    return remember(cb_remote_cuMemAllocFromPoolAsync(dptr, bytesize, pool, hStream), dptr, bytesize);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    CUresult result = cb_remote_cuMemFree_v2(dptr);
    if (result == CUDA_SUCCESS) cb_range_drop(dptr, CB_MEMORY_DEVICE, NULL);
    return result;
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    CUresult result = cb_remote_cuMemFreeAsync(dptr, hStream);
    if (result == CUDA_SUCCESS) cb_range_drop(dptr, CB_MEMORY_DEVICE, NULL);
    return result;
}

/* ---- what a pointer is ---- */

static size_t bytes_of(CUpointer_attribute a)
{
    switch (a) {
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        return 16;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return 4;
    default:
        return 8;
    }
}

/* Host memory is this process's own; the worker has never seen it. */
static CUresult of_host(void *data, CUpointer_attribute a, CUdeviceptr ptr, const struct cb_range *r)
{
    uint64_t v = 0;
    CUcontext context = NULL;
    CUdevice device = 0;
    switch (a) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        cuCtxGetCurrent(&context);
        v = (uintptr_t)context;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        v = CU_MEMORYTYPE_HOST;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        v = ptr;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        if (cuCtxGetDevice(&device) == CUDA_SUCCESS) v = (uint64_t)device;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        v = 1;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        v = r->address;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        v = r->bytes;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        return CUDA_ERROR_INVALID_VALUE; /* a remote device cannot reach it */
    default:
        break;
    }
    memcpy(data, &v, bytes_of(a));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct cb_call call;
    struct cb_range r;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!data) return CUDA_ERROR_INVALID_VALUE;
    if (cb_range_of(ptr, &r) && r.memory != CB_MEMORY_DEVICE) return of_host(data, attribute, ptr, &r);
    CB_OK(cb_call_begin(&call, CB_OP_POINTER, CB_ANYWHERE));
    cb_put_word(&call, (uint64_t)attribute);
    cb_put_word(&call, ptr);
    CB_OK(cb_call_ask(&call));
    uint64_t answer[2] = {cb_take_word(&call), cb_take_word(&call)};
    memcpy(data, answer, bytes_of(attribute));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes,
                                       void **data, CUdeviceptr ptr)
{
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!attributes || !data) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < numAttributes; i++) {
        CUresult result = cuPointerGetAttribute(data[i], attributes[i], ptr);
        if (result == CUDA_ERROR_INVALID_VALUE && data[i])
            memset(data[i], 0, bytes_of(attributes[i])); /* as the driver does for one that does not apply */
        else if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}
