/*
 * Memory of graphs. An allocation node has its address from its creation; the memory is charged by the first
 * launch and kept, used or not, until the graphs that refer to it are destroyed or the device's graph memory is
 * trimmed.
 */
#include "sim/cuda/graph/graph_memory.h"

#include "sim/cuda/memory/address_space.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/process/process.h"
#include "sim/node/charge.h"
#include "sim/node/state.h"

static pthread_mutex_t graph_memory_lock = PTHREAD_MUTEX_INITIALIZER;

CUresult graph_memory_new(struct device *d, size_t bytes, struct graph_memory **out)
{
    if (bytes == 0 || bytes > 1ull << 46) return CUDA_ERROR_INVALID_VALUE;
    struct graph_memory *m = calloc(1, sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t capacity = sim_round_up(bytes, SIM_LARGE_UNIT);
    memory_lock();
    uint64_t base = space_take(capacity, 0, 0);
    struct range *r = base ? range_add(base, bytes, capacity, MEMORY_GRAPH) : NULL;
    if (base && !r) space_give(base, capacity);
    if (r) {
        r->device = d;
        r->owner = m;
        r->pending_free = true;
    }
    memory_unlock();
    if (!r) {
        free(m);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *m = (struct graph_memory){.references = 1, .range = r, .device = d};
    *out = m;
    return CUDA_SUCCESS;
}

/* Requires the lock. */
static void graph_memory_uncharge(struct graph_memory *m)
{
    if (!m->range->charged) return;
    memory_blank(m->range->base, m->range->capacity);
    sim_refund(&process.sim, m->device->index, m->range->charged, false);
    m->device->graph_reserved -= m->range->charged;
    m->range->charged = 0;
}

void graph_memory_release(struct graph_memory *m)
{
    pthread_mutex_lock(&graph_memory_lock);
    bool gone = --m->references == 0 && !m->live;
    if (gone) {
        graph_memory_uncharge(m);
        memory_drop(m->range);
        free(m);
    }
    pthread_mutex_unlock(&graph_memory_lock);
}

struct graph_memory *graph_memory_at(CUdeviceptr address)
{
    memory_lock();
    const struct range *r = range_find(address);
    struct graph_memory *m = r && r->memory == MEMORY_GRAPH && r->base == address ? r->owner : NULL;
    memory_unlock();
    return m;
}

CUresult graph_memory_use(struct graph_memory *m)
{
    struct device *d = m->device;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&graph_memory_lock);
    if (m->live) {
        result = CUDA_ERROR_INVALID_VALUE; /* launched again before it was freed */
    } else if (!m->range->charged) {
        uint64_t charge = sim_charge_bytes(m->range->size);
        if (sim_charge(&process.sim, d->index, charge, false)) {
            m->range->charged = charge;
            d->graph_reserved += charge;
            if (d->graph_reserved > d->graph_reserved_high) d->graph_reserved_high = d->graph_reserved;
        } else {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (result == CUDA_SUCCESS) {
        m->live = true;
        d->graph_used += m->range->charged;
        if (d->graph_used > d->graph_used_high) d->graph_used_high = d->graph_used;
        memory_lock();
        m->range->pending_free = false;
        memory_unlock();
    }
    pthread_mutex_unlock(&graph_memory_lock);
    return result;
}

static bool range_release(struct range *r, bool hide)
{
    struct graph_memory *m = r->owner;
    pthread_mutex_lock(&graph_memory_lock);
    bool was = m->live;
    if (was) {
        m->live = false;
        m->device->graph_used -= r->charged;
        if (hide) {
            memory_lock();
            r->pending_free = true;
            memory_unlock();
        }
        if (m->references == 0) {
            graph_memory_uncharge(m);
            memory_drop(r);
            free(m);
        }
    }
    pthread_mutex_unlock(&graph_memory_lock);
    return was;
}

bool graph_memory_free(struct range *r)
{
    return range_release(r, true);
}

/*
 * A free node frees in the order of issue: effects of the same launch may still be under way, so the memory is
 * kept.
 */
void graph_memory_unuse(struct graph_memory *m)
{
    range_release(m->range, false);
}

/* ---- queries ---- */

EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    const struct device *d = device_get(device);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!d) return CUDA_ERROR_INVALID_DEVICE;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    cuuint64_t v;
    switch (attr) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
        v = d->graph_used;
        break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
        v = d->graph_used_high;
        break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
        v = d->graph_reserved;
        break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
        v = d->graph_reserved_high;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(value, &v, sizeof v);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    struct device *d = device_get(device);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!d) return CUDA_ERROR_INVALID_DEVICE;
    cuuint64_t v = 1;
    if (value) memcpy(&v, value, sizeof v);
    if (v != 0) return CUDA_ERROR_INVALID_VALUE; /* a high-water mark can only be reset */
    if (attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        d->graph_used_high = d->graph_used;
    else if (attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        d->graph_reserved_high = d->graph_reserved;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

struct trimming {
    struct device *device;
    struct graph_memory *found[256];
    size_t count;
};

static void trim_collect(struct range *r, void *argument)
{
    struct trimming *t = argument;
    if (r->memory != MEMORY_GRAPH || r->device != t->device || !r->charged || t->count == 256) return;
    struct graph_memory *m = r->owner;
    if (!m->live) t->found[t->count++] = m;
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    struct trimming t = {.device = device_get(device)};
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!t.device) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&graph_memory_lock);
    do {
        t.count = 0;
        memory_lock();
        ranges_visit(trim_collect, &t);
        memory_unlock();
        for (size_t i = 0; i < t.count; i++)
            graph_memory_uncharge(t.found[i]);
    } while (t.count == 256);
    pthread_mutex_unlock(&graph_memory_lock);
    return CUDA_SUCCESS;
}
