/* Driver calls that return attributes of pointers and ranges. */
#include "sim/cuda/memory/address_space.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/memory/registered_memory.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/process.h"

static CUmemorytype range_memory_type(const struct range *r)
{
    return r->memory == MEMORY_HOST || r->memory == MEMORY_REGISTERED ? CU_MEMORYTYPE_HOST
                                                                      : CU_MEMORYTYPE_DEVICE;
}

static void put_int(void *data, int v)
{
    memcpy(data, &v, sizeof v);
}

static void put_u64(void *data, uint64_t v)
{
    memcpy(data, &v, sizeof v);
}

/* Requires the memory lock. `r` may be NULL: an unknown address. */
static CUresult attribute_get(void *data, CUpointer_attribute a, uint64_t address, const struct range *r)
{
    bool known = r && r->memory != MEMORY_RESERVED;
    switch (a) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        put_u64(data, known && r->memory != MEMORY_MAPPED ? (uint64_t)r->context : 0);
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        put_int(data, known ? (int)range_memory_type(r) : 0);
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        put_u64(data, known ? address : 0);
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (known && range_memory_type(r) != CU_MEMORYTYPE_HOST && r->memory != MEMORY_MANAGED)
            return CUDA_ERROR_INVALID_VALUE;
        put_u64(data, known ? address : 0);
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        put_int(data, 0);
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        put_u64(data, known ? r->id : 0);
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        put_int(data, known && r->memory == MEMORY_MANAGED);
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        put_int(data, !known       ? -2
                      : r->device  ? r->device->ordinal
                      : r->context ? r->context->device->ordinal
                                   : 0);
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        put_int(data, known && r->memory == MEMORY_DEVICE);
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        put_u64(data, r ? r->base : 0);
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        put_u64(data, r ? r->size : 0);
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        put_int(data, known);
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        put_u64(data, known ? r->handle_types : 0);
        break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        put_int(data,
                known ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        put_u64(data, known ? (uint64_t)r->pool : 0);
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!data || !ptr) return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    const struct range *r = range_find_any(ptr);
    CUresult result = r ? attribute_get(data, attribute, ptr, r) : CUDA_ERROR_INVALID_VALUE;
    memory_unlock();
    return result;
}

EXPORT CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes,
                                       void **data, CUdeviceptr ptr)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!attributes || !data) return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    const struct range *r = range_find_any(ptr);
    CUresult result = CUDA_SUCCESS;
    for (unsigned int i = 0; i < numAttributes && result == CUDA_SUCCESS; i++) {
        if (!data[i]) {
            result = CUDA_ERROR_INVALID_VALUE;
        } else if (attribute_get(data[i], attributes[i], ptr, r) != CUDA_SUCCESS) {
            /* In a bulk query, an attribute that does not apply reads as zero. */
            if (attributes[i] <= 0 || attributes[i] > CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE)
                result = CUDA_ERROR_INVALID_VALUE;
            else
                put_u64(data[i], 0);
        }
    }
    memory_unlock();
    return result;
}

EXPORT CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
    return memory_is_ours(ptr) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemRangeGetAttribute(void *data, size_t dataSize, CUmem_range_attribute attribute,
                                       CUdeviceptr devPtr, size_t count)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!data || dataSize < 4 || count == 0) return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    const struct range *r = range_find_any(devPtr);
    bool ok = r && r->memory == MEMORY_MANAGED && devPtr + count <= r->base + r->size;
    memory_unlock();
    if (!ok) return CUDA_ERROR_INVALID_VALUE;
    /* Advice is accepted without effect, so none is in force. */
    int none = attribute == CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY ? 0 : CU_DEVICE_INVALID;
    for (size_t i = 0; i + 4 <= dataSize; i += 4)
        put_int((char *)data + i, none);
    return CUDA_SUCCESS;
}
