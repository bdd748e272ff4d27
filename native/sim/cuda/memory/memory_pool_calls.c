/* Driver calls of memory pools, and of allocation in stream order. */
#include "sim/cuda/graph/capture_nodes.h"
#include "sim/cuda/graph/graph_memory.h"
#include "sim/cuda/memory/address_space.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/memory/memory_pool.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"
#include "sim/cuda/stream/stream.h"
#include "sim/cuda/stream/stream_work.h"

/* ---- allocation in stream order ---- */

static CUresult pool_allocate(CUdeviceptr *dptr, size_t bytes, struct pool *p, CUstream hStream)
{
    struct stream *s;
    struct range *r;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (!dptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (s->capture) return capture_alloc(s, p, bytes, dptr);
    result = pool_take(s->context, p, bytes, &r);
    if (result == CUDA_SUCCESS) *dptr = r->base;
    return result;
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    struct stream *s;
    struct pool *p;
    CUresult result = stream_get(hStream, &s);
    if (result == CUDA_SUCCESS) result = pool_device_default(s->context->device, &p);
    if (result != CUDA_SUCCESS) return result;
    return pool_allocate(dptr, bytesize, s->context->device->current_pool, hStream);
}

static struct pool *pool_get(CUmemoryPool handle)
{
    return process.ready ? object_get(handle, KIND_POOL) : NULL;
}

#define POOL_OR_RETURN(p, handle)                          \
    struct pool *p = pool_get(handle);                     \
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED; \
    if (!p) return CUDA_ERROR_INVALID_VALUE

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                        CUstream hStream)
{
    POOL_OR_RETURN(p, pool);
    return pool_allocate(dptr, bytesize, p, hStream);
}

static CUresult free_effect(struct context *c, void *argument)
{
    (void)c;
    struct range *r = *(struct range **)argument;
    if (r->memory == MEMORY_GRAPH)
        graph_memory_free(r);
    else if (r->pool)
        pool_drop(r);
    else
        memory_drop(r);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    STREAM_OR_RETURN(s, hStream);
    if (!dptr) return CUDA_SUCCESS;
    if (s->capture) return capture_free(s, dptr);
    memory_lock();
    struct range *r = range_find(dptr);
    bool right =
        r && r->base == dptr && !r->pending_free && !r->freeing &&
        (r->memory == MEMORY_GRAPH || (!r->owner && (r->memory == MEMORY_POOL || r->memory == MEMORY_DEVICE ||
                                                     r->memory == MEMORY_MANAGED)));
    if (right) r->freeing = r->memory != MEMORY_GRAPH;
    memory_unlock();
    if (!right) return CUDA_ERROR_INVALID_VALUE;
    return stream_submit(
        s, &(struct work){
               .kind = WORK_EFFECT, .effect = free_effect, .argument = &r, .argument_bytes = sizeof r});
}

/* ---- pools as objects ---- */

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    struct device *d = device_get(dev);
    struct pool *p;
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!d) return CUDA_ERROR_INVALID_DEVICE;
    if (!pool_out) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = pool_device_default(d, &p);
    if (result == CUDA_SUCCESS) *pool_out = (CUmemoryPool)p;
    return result;
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    CUresult result = cuDeviceGetDefaultMemPool(pool, dev);
    if (result == CUDA_SUCCESS) *pool = (CUmemoryPool)device_get(dev)->current_pool;
    return result;
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    struct device *d = device_get(dev);
    POOL_OR_RETURN(p, pool);
    if (!d) return CUDA_ERROR_INVALID_DEVICE;
    if (p->device != d) return CUDA_ERROR_INVALID_VALUE;
    d->current_pool = p;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!pool || !poolProps || poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        poolProps->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return unserved("cuMemPoolCreate of host memory or with handle types");
    struct device *d = device_get(poolProps->location.id);
    if (!d) return CUDA_ERROR_INVALID_DEVICE;
    struct pool *p = pool_new(d, false);
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    p->max_size = poolProps->maxSize;
    *pool = (CUmemoryPool)p;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    POOL_OR_RETURN(p, pool);
    if (p->is_default) return CUDA_ERROR_INVALID_VALUE;
    pool_trim(p, 0);
    if (p->device->current_pool == p) p->device->current_pool = p->device->default_pool;
    pool_unlink(p);
    object_free(p);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    POOL_OR_RETURN(p, pool);
    pool_trim(p, minBytesToKeep);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    POOL_OR_RETURN(p, pool);
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    cuuint64_t v;
    switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = p->reuse[attr - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        v = p->release_threshold;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        v = p->reserved;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        v = p->reserved_high;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        v = p->used;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        v = p->used_high;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(value, &v, sizeof v);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    POOL_OR_RETURN(p, pool);
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    cuuint64_t v;
    switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        p->reuse[attr - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(const int *)value != 0;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        memcpy(&v, value, sizeof v);
        p->release_threshold = v;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        memcpy(&v, value, sizeof v);
        if (v != 0) return CUDA_ERROR_INVALID_VALUE; /* a high-water mark can only be reset */
        pool_reset_high(p, attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    POOL_OR_RETURN(p, pool);
    if (!map && count) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
        if (!device_get(map[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
        uint32_t bit = 1u << map[i].location.id;
        if (map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
            if (map[i].location.id == p->device->ordinal) return CUDA_ERROR_INVALID_VALUE;
            p->access &= ~bit;
        } else {
            p->access |= bit;
        }
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location)
{
    POOL_OR_RETURN(p, memPool);
    if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
    if (!device_get(location->id)) return CUDA_ERROR_INVALID_DEVICE;
    *flags =
        p->access >> location->id & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

static CUresult location_default(CUmemLocation *location, CUmemAllocationType type, struct device **out)
{
    *out = NULL;
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!location || type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return unserved("memory pools of the host");
    *out = device_get(location->id);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location,
                                       CUmemAllocationType type)
{
    struct device *d;
    CUresult result = location_default(location, type, &d);
    return !d ? result : cuDeviceGetDefaultMemPool(pool_out, d->ordinal);
}

EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    struct device *d;
    CUresult result = location_default(location, type, &d);
    return !d ? result : cuDeviceGetMemPool(pool, d->ordinal);
}

EXPORT CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    struct device *d;
    CUresult result = location_default(location, type, &d);
    return !d ? result : cuDeviceSetMemPool(d->ordinal, pool);
}
