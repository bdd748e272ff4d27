/*
 * A driver that differs from the simulator's, as libcuda.so.1: it has few functions, its pool grows in steps of
 * 32 MiB, and cuGetProcAddress returns private entries that no symbol names. Its memory is arithmetic only.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stdlib.h>
#include <string.h>

#define STEP (32ull << 20)

static size_t reserved, used, next = 4096;
static int object;

CUresult cuInit(unsigned int flags)
{
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int *count)
{
    *count = 1;
    return CUDA_SUCCESS;
}

/* It has the UUID that the test sets. */
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    const char *text = getenv("TEST_UUID");
    (void)device;
    for (int i = 0; text != NULL && i < 16; text += 2) {
        char byte[3] = {text[0], text[1], 0};
        if (text[0] == '-') {
            text--;
            continue;
        }
        uuid->bytes[i++] = (char)strtol(byte, NULL, 16);
    }
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    (void)device;
    *context = (CUcontext)&object;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    return context != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = (CUcontext)&object;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    *device = 0;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    (void)flags;
    *stream = (CUstream)&object;
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

/* Refuse as often as the test requests, like a driver that has not yet freed a dead process's memory. */
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    static int refused;
    const char *refusals = getenv("TEST_REFUSALS");
    if (refusals != NULL && refused < atoi(refusals)) {
        refused++;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pointer = next;
    next += bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    (void)pointer;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    (void)device;
    *pool = (CUmemoryPool)&object;
    return CUDA_SUCCESS;
}

/* A request never spans two steps: the rest of a step is lost to it. */
CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    (void)stream;
    if (bytes > STEP) return CUDA_ERROR_NOT_SUPPORTED;
    if (reserved - used < bytes) {
        used = reserved;
        reserved += STEP;
    }
    used += bytes;
    return cuMemAlloc_v2(pointer, bytes);
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    (void)pool;
    *(cuuint64_t *)value = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? reserved : used;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    (void)pool;
    (void)keep;
    return CUDA_SUCCESS; /* every step is in use */
}

static CUresult private_alloc(CUdeviceptr *pointer, size_t bytes)
{
    return cuMemAlloc_v2(pointer, bytes);
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    (void)flags;
    *function = NULL;
    if (strcmp(symbol, "cuMemAlloc") == 0 && version >= 3020)
        *function = (void *)private_alloc;
    else if (strcmp(symbol, "cuInit") == 0)
        *function = (void *)cuInit;
    else if (strcmp(symbol, "cuDevicePrimaryCtxRetain") == 0)
        *function = (void *)cuDevicePrimaryCtxRetain;
    else if (strcmp(symbol, "cuCtxSetCurrent") == 0)
        *function = (void *)cuCtxSetCurrent;
    else if (strcmp(symbol, "cuGetProcAddress") == 0)
        *function = (void *)cuGetProcAddress_v2;
    *status = *function != NULL ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
