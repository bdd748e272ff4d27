/*
 * Attributes of pointers. Memory that this process has allocated is known here; about other addresses the
 * worker is asked.
 */
#include "remote/client/connection/call.h"
#include "remote/client/memory/memory_ranges.h"
#include "remote/client/memory/pinned_mapping.h"

#include <sys/mman.h>

static size_t attribute_bytes(CUpointer_attribute a)
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
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return 4;
    default:
        return 8;
    }
}

static CUresult device_address_of(uint64_t *v, CUdeviceptr p, const struct cb_range *r)
{
    if (r->memory == CB_MEMORY_REGISTERED) return CUDA_ERROR_INVALID_VALUE; /* a device cannot reach it */
    if (r->memory == CB_MEMORY_HOST) {
        if (!cb_in_arena(r->address, r->bytes)) return CUDA_ERROR_INVALID_VALUE;
        CB_OK(cb_pinned_map_for(p));
    }
    *v = p;
    return CUDA_SUCCESS;
}

static CUresult attribute_known(uint64_t *v, CUpointer_attribute a, CUdeviceptr p, const struct cb_range *r)
{
    bool host = cb_memory_is_host(r->memory);
    switch (a) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *v = (uintptr_t)r->context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *v = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        return device_address_of(v, p, r);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *v = p;
        return host || r->memory == CB_MEMORY_MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *v = r->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *v = r->memory == CB_MEMORY_MANAGED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *v = (uint64_t)r->device;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *v = r->memory == CB_MEMORY_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *v = r->address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *v = r->bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *v = 1;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *v = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: /* the worker exports nothing */
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* Ordinary memory of this process, unknown to any device. */
static bool address_is_mapped_here(CUdeviceptr p)
{
    unsigned char there;
    return mincore((void *)(p & ~4095ull), 1, &there) == 0;
}

static CUresult attribute_get(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct cb_call call;
    struct cb_range r;
    uint64_t v[2] = {0};
    bool asks = attribute == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
    if (cb_range_of(ptr, &r) && !(asks && r.memory == CB_MEMORY_POOL)) {
        if (!asks) CB_OK(attribute_known(v, attribute, ptr, &r));
        memcpy(data, v, attribute_bytes(attribute));
        return CUDA_SUCCESS;
    }
    if (address_is_mapped_here(ptr)) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_call_begin(&call, CB_OP_POINTER, CB_ANYWHERE));
    cb_put_word(&call, (uint64_t)attribute);
    cb_put_word(&call, ptr);
    CB_OK(cb_call_ask(&call));
    v[0] = cb_take_word(&call);
    v[1] = cb_take_word(&call);
    memcpy(data, v, attribute_bytes(attribute));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!data || !ptr) return CUDA_ERROR_INVALID_VALUE;
    return attribute_get(data, attribute, ptr);
}

EXPORT CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes,
                                       void **data, CUdeviceptr ptr)
{
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!attributes || !data) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < numAttributes; i++) {
        CUpointer_attribute a = attributes[i];
        if (!data[i] || (int)a <= 0 || a > CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE)
            return CUDA_ERROR_INVALID_VALUE;
        CUresult result = attribute_get(data[i], a, ptr);
        /* in a bulk query, an attribute that does not apply reads as zero */
        if (result == CUDA_ERROR_INVALID_VALUE) {
            int none = a == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? -2 : 0;
            memset(data[i], 0, attribute_bytes(a));
            memcpy(data[i], &none, sizeof none);
        } else if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct cb_range r;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    bool ok = value && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && cb_range_of(ptr, &r);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
