/*
 * Stream-ordered memory: pools, and allocation and release in the order of a stream.
 *
 * A pool reserves memory of the card in ranges of the rounded size (sim_charge_bytes), keeps what is freed up
 * to its release threshold, and hands a kept range to the next request of the same rounded size. Reserved
 * bytes are charged to the card; used bytes are what the program holds. What exceeds the threshold is given
 * back when it is freed, the rest when the card is full.
 */
#include "sim/cuda/internal.h"

struct kept { /* a range that the pool holds and nobody uses */
    struct range *range;
    struct kept *next;
};

static struct pool *pools;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct pool *pool_new(struct device *d, bool is_default)
{
    struct pool *p = object_new(KIND_POOL, sizeof *p);
    if (!p) return NULL;
    p->device = d;
    p->is_default = is_default;
    p->access = 1u << d->ordinal;
    for (int i = 0; i < 4; i++)
        p->reuse[i] = 1;
    pthread_mutex_lock(&lock);
    p->next = pools;
    pools = p;
    pthread_mutex_unlock(&lock);
    return p;
}

CUresult pool_device_default(struct device *d, struct pool **out)
{
    static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&making);
    if (!d->default_pool) d->default_pool = pool_new(d, true);
    if (!d->current_pool) d->current_pool = d->default_pool;
    pthread_mutex_unlock(&making);
    *out = d->default_pool;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The lock is held. */
static void count_use(struct pool *p, uint64_t bytes)
{
    p->used += bytes;
    if (p->used > p->used_high) p->used_high = p->used;
}

CUresult pool_take(struct context *c, struct pool *p, uint64_t bytes, struct range **out)
{
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    uint64_t charge = sim_charge_bytes(bytes);
    pthread_mutex_lock(&lock);
    for (struct kept **k = &p->kept; *k; k = &(*k)->next) {
        struct range *r = (*k)->range;
        if (r->charged != charge) continue;
        struct kept *empty = *k;
        *k = empty->next;
        free(empty);
        p->cached -= charge;
        memory_lock();
        r->size = bytes;
        r->pending_free = r->freeing = false;
        r->context = c;
        memory_unlock();
        count_use(p, charge);
        pthread_mutex_unlock(&lock);
        *out = r;
        return CUDA_SUCCESS;
    }
    bool over = p->max_size && p->reserved + charge > p->max_size;
    if (over) {
        pthread_mutex_unlock(&lock);
        pool_trim(p, p->max_size > charge ? p->max_size - charge : 0);
        pthread_mutex_lock(&lock);
        over = p->reserved + charge > p->max_size;
    }
    if (!over) p->reserved += charge; /* before the card is asked, so that two cannot both pass */
    pthread_mutex_unlock(&lock);
    if (over) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = memory_take(c, p->device, bytes, MEMORY_POOL, out);
    pthread_mutex_lock(&lock);
    if (result == CUDA_SUCCESS) {
        (*out)->pool = p;
        if (p->reserved > p->reserved_high) p->reserved_high = p->reserved;
        count_use(p, charge);
    } else {
        p->reserved -= charge;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* The program is done with `r`: the pool keeps it. */
static void keep(struct range *r)
{
    struct pool *p = r->pool;
    struct kept *k = malloc(sizeof *k);
    memory_lock();
    r->pending_free = true; /* nobody may touch it until it is handed out again */
    memory_unlock();
    pthread_mutex_lock(&lock);
    p->used -= r->charged;
    if (k) {
        *k = (struct kept){r, p->kept};
        p->kept = k;
        p->cached += r->charged;
    } else {
        p->reserved -= r->charged;
    }
    pthread_mutex_unlock(&lock);
    if (!k) memory_drop(r);
}

void pool_drop(struct range *r)
{
    struct pool *p = r->pool;
    if (!object_get(p, KIND_POOL)) {
        memory_drop(r);
        return;
    }
    keep(r);
    pool_trim(p, p->release_threshold);
}

bool pool_trim(struct pool *p, uint64_t keep_bytes)
{
    for (bool any = false;; any = true) {
        pthread_mutex_lock(&lock);
        struct kept *k = p->reserved > keep_bytes ? p->kept : NULL;
        if (k) {
            p->kept = k->next;
            p->cached -= k->range->charged;
            p->reserved -= k->range->charged;
        }
        pthread_mutex_unlock(&lock);
        if (!k) return any;
        memory_drop(k->range);
        free(k);
    }
}

bool pools_trim_device(struct device *d)
{
    bool any = false;
    if (!__atomic_load_n(&pools, __ATOMIC_ACQUIRE)) return false;
    pthread_mutex_lock(&lock);
    struct pool *p = pools;
    pthread_mutex_unlock(&lock);
    for (; p; p = p->next) {
        if (p->device == d && p->cached && pool_trim(p, p->used)) any = true;
    }
    return any;
}

/* ---- allocation in stream order ---- */

static CUresult allocate(CUdeviceptr *dptr, size_t bytes, struct pool *p, CUstream hStream)
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
    return allocate(dptr, bytesize, s->context->device->current_pool, hStream);
}

static struct pool *get(CUmemoryPool handle)
{
    return process.ready ? object_get(handle, KIND_POOL) : NULL;
}

#define POOL_OR_RETURN(p, handle)                          \
    struct pool *p = get(handle);                          \
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED; \
    if (!p) return CUDA_ERROR_INVALID_VALUE

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                        CUstream hStream)
{
    POOL_OR_RETURN(p, pool);
    return allocate(dptr, bytesize, p, hStream);
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
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
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

static void forget(struct range *r, void *argument)
{
    if (r->pool == argument) r->pool = NULL; /* what the program still holds is then ordinary memory */
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    POOL_OR_RETURN(p, pool);
    if (p->is_default) return CUDA_ERROR_INVALID_VALUE;
    pool_trim(p, 0);
    if (p->device->current_pool == p) p->device->current_pool = p->device->default_pool;
    pthread_mutex_lock(&lock);
    for (struct pool **q = &pools; *q; q = &(*q)->next) {
        if (*q != p) continue;
        *q = p->next;
        break;
    }
    pthread_mutex_unlock(&lock);
    memory_lock();
    ranges_visit(forget, p);
    memory_unlock();
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
        pthread_mutex_lock(&lock);
        if (attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
            p->reserved_high = p->reserved;
        else
            p->used_high = p->used;
        pthread_mutex_unlock(&lock);
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
